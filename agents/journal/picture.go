package journal

// Seen is how files and limits are at a time.
type Seen struct {
	// Files has files by their paths.
	Files map[string]File `json:"files"`
	// Limits has the limits of the control group, by what they limit: cpu, memory, pids.
	Limits map[string]string `json:"limits"`
}

// File is a file as it was seen. It is comparable.
type File struct {
	// Exists is false also if the path leads to no regular file.
	Exists bool  `json:"exists"`
	Size   int64 `json:"size,omitempty"`
	// Modified is in nanoseconds since 1970.
	Modified int64  `json:"mtime_ns,omitempty"`
	Inode    uint64 `json:"inode,omitempty"`
	// Sum is the SHA-256 of the content in hexadecimal digits; empty for large files.
	Sum string `json:"sha256,omitempty"`
}
