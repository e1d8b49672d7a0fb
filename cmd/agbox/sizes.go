package main

import "github.com/docker/go-units"

// byteCount is a number of bytes that were moved, in powers of 1000.
func byteCount(n int64) string {
	return units.CustomSize("%.4g %s", float64(n), 1000, []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"})
}

// memoryCount is a number of bytes as limits are written, in powers of 1024.
func memoryCount(n uint64) string {
	return units.CustomSize("%.4g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}
