package main

import "github.com/docker/go-units"

// byteCount formats a number of transferred bytes, in powers of 1000.
func byteCount(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"})
}

// memoryCount formats a number of bytes of memory, in powers of 1024.
func memoryCount(n uint64) string {
	return units.CustomSize("%.4g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}
