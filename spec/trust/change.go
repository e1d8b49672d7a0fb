package trust

import (
	"slices"
)

// Change is the difference between a question and an earlier answer.
type Change struct {
	// New are the added requests, Gone the removed ones.
	New, Gone []Request
	// Files are the files that differ.
	Files []FileChange
}

// FileChange is one file that differs.
type FileChange struct {
	Path string
	// Before and After are the contents. For a changed file, both are empty if one of
	// them is secret.
	Before, After string
	// Added is true for a new file, Removed for one that no longer belongs to the question.
	Added, Removed bool
}

// Since compares a question with an earlier answer.
func (q Question) Since(before *Answer) Change {
	var c Change
	c.New = missingFrom(q.Requests, before.Requests)
	c.Gone = missingFrom(before.Requests, q.Requests)
	for _, f := range q.Files {
		i := slices.IndexFunc(before.Files, func(o File) bool { return o.Path == f.Path })
		switch {
		case i < 0:
			c.Files = append(c.Files, FileChange{Path: f.Path, After: f.Content, Added: true})
		case before.Files[i].Digest != f.Digest:
			one := FileChange{Path: f.Path}
			if !f.Secret && !before.Files[i].Secret {
				one.Before, one.After = before.Files[i].Content, f.Content
			}
			c.Files = append(c.Files, one)
		}
	}
	for _, f := range before.Files {
		if !slices.ContainsFunc(q.Files, func(o File) bool { return o.Path == f.Path }) {
			c.Files = append(c.Files, FileChange{Path: f.Path, Before: f.Content, Removed: true})
		}
	}
	return c
}

// missingFrom returns the requests of list whose text is not in other.
func missingFrom(list, other []Request) []Request {
	var all []Request
	for _, r := range list {
		if !slices.ContainsFunc(other, func(o Request) bool { return o.Text == r.Text }) {
			all = append(all, r)
		}
	}
	return all
}
