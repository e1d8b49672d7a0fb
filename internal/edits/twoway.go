package edits

// Direction says where a file goes that a folder and a sandbox keep in step.
type Direction int

// The directions.
const (
	// InStep: neither side has changed the file.
	InStep Direction = iota
	// Agreed: both sides have made the same change.
	Agreed
	ToFolder
	ToSandbox
	// Clash: the sides have made different changes. Both keep theirs.
	Clash
)

// Decide compares the versions of a file that both sides had and have. nil means that there
// is none.
func Decide(base, folder, sandbox *File) Direction {
	switch {
	case Same(folder, sandbox) && Same(folder, base):
		return InStep
	case Same(folder, sandbox):
		return Agreed
	case Same(folder, base):
		return ToFolder
	case Same(sandbox, base):
		return ToSandbox
	}
	return Clash
}

// Ours reports whether a path of a folder belongs to agbox or to git, and so is no work.
func Ours(name string) bool { return !usable(name) && name != "." }
