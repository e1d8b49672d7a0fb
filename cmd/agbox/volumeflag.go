package main

import (
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/notation"
)

// volumeFlags reads the values of --volume into the spec. As with Docker, a source that
// is a path is a bind mount; unlike there, it is read-only unless it says rw, and that is
// said, unless quiet is set.
func (a *app) volumeFlags(spec *agboxv1.CreateSpec, values []string, quiet bool, keep func(error)) {
	for _, value := range values {
		if !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, ".") && !strings.HasPrefix(value, "~") {
			volume, err := notation.Volume(value)
			if err != nil {
				keep(flagError("volume", err))
				continue
			}
			spec.Volumes = append(spec.Volumes, volume)
			continue
		}
		mount, err := notation.Mount(value)
		if err != nil {
			keep(flagError("volume", err))
			continue
		}
		if !quiet && !mount.GetWritable() && !strings.HasSuffix(value, ":ro") {
			a.say("%s is mounted read-only. Write %s:rw to make it writable, or :ro for no notice.", mount.GetSource(), value)
		}
		spec.Mounts = append(spec.Mounts, mount)
	}
}
