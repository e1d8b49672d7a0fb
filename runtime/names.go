package runtime

import "github.com/agbox/agbox/internal/ids"

// The names of a sandbox's engine objects. They are recomputed from the ids and
// never stored. Two sandboxes whose ids contain '-' can meet in one service name
// ("a-b" with "c", "a" with "b-c"): labels tell such objects apart, and the second
// one is refused as taken.

// NetworkName is the name of a sandbox's network.
func NetworkName(sandboxID string) string {
	return "agbox-net-" + ids.Sanitize(sandboxID)
}

// PrimaryName is the name of a sandbox's primary container.
func PrimaryName(sandboxID string) string {
	return "agbox-primary-" + ids.Sanitize(sandboxID)
}

// ServiceName is the name of a sandbox's service container.
func ServiceName(sandboxID, service string) string {
	return "agbox-svc-" + ids.Sanitize(sandboxID) + "-" + ids.Sanitize(service)
}

// VolumeName is the name of a sandbox's volume.
func VolumeName(sandboxID, volume string) string {
	return "agbox-vol-" + ids.Sanitize(sandboxID) + "-" + ids.Sanitize(volume)
}
