// Package version tells which build of agbox this is.
package version

// Version is stamped by the linker; "dev" in an unstamped build.
var Version = "dev"
