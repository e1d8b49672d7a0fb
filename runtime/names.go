package runtime

import "github.com/agbox/agbox/internal/ids"

// The names of a sandbox's engine objects are computed from the ids and never
// stored. Two sandboxes whose ids contain '-' can get the same service name
// ("a-b" with "c", and "a" with "b-c"). Labels distinguish such objects, and the
// second container is refused because its name is taken.

// NetworkName is the name of a sandbox's network.
func NetworkName(sandboxID string) string {
	return "agbox-net-" + ids.Sanitize(sandboxID)
}

// PrimaryName is the name of a sandbox's primary container.
func PrimaryName(sandboxID string) string {
	return "agbox-primary-" + ids.Sanitize(sandboxID)
}

// ImageReaderName is the name of the container from which files of the primary's image
// are read.
func ImageReaderName(sandboxID string) string {
	return "agbox-image-reader-" + ids.Sanitize(sandboxID)
}

// ReclaimerName is the name of the container that removes what the daemon cannot remove.
func ReclaimerName(sandboxID string) string {
	return "agbox-reclaimer-" + ids.Sanitize(sandboxID)
}

// ServiceName is the name of a sandbox's service container.
func ServiceName(sandboxID, service string) string {
	return "agbox-svc-" + ids.Sanitize(sandboxID) + "-" + ids.Sanitize(service)
}

// VolumeName is the name of a sandbox's volume.
func VolumeName(sandboxID, volume string) string {
	return "agbox-vol-" + ids.Sanitize(sandboxID) + "-" + ids.Sanitize(volume)
}
