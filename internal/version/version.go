// Package version has the version of this build of agbox.
package version

// Version is set by the linker. It is "dev" in a build that does not set it.
var Version = "dev"
