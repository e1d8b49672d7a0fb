package runtime

import "github.com/agbox/agbox/internal/ids"

// The names of a sandbox's engine objects are computed from the ids and never
// stored. Docker takes every valid id and name of a service as it is. Two sandboxes whose ids contain '-' can get the same service name
// ("a-b" with "c", and "a" with "b-c"). Labels distinguish such objects, and the
// second container is refused because its name is taken.

const (
	primaryPrefix = "agbox-primary-"
	servicePrefix = "agbox-svc-"
)

// NetworkName is the name of a sandbox's network.
func NetworkName(sandboxID string) string {
	return "agbox-net-" + sandboxID
}

// PrimaryName is the name of a sandbox's primary container.
func PrimaryName(sandboxID string) string {
	return primaryPrefix + sandboxID
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
	return servicePrefix + sandboxID + "-" + service
}

// IsPrimaryName reports whether a container with this name may be the primary of a sandbox. A
// daemon of an earlier version gave names with changed ids.
func IsPrimaryName(name, sandboxID string) bool {
	return name == PrimaryName(sandboxID) || name == primaryPrefix+ids.Sanitize(sandboxID)
}

// IsServiceName is IsPrimaryName for a service.
func IsServiceName(name, sandboxID, service string) bool {
	return name == ServiceName(sandboxID, service) || name == servicePrefix+ids.Sanitize(sandboxID)+"-"+ids.Sanitize(service)
}

// VolumeName is the name of a sandbox's volume. It names a folder of the engine, so it is
// shorter than two ids may be.
func VolumeName(sandboxID, volume string) string {
	return "agbox-vol-" + ids.Sanitize(sandboxID) + "-" + ids.Sanitize(volume)
}
