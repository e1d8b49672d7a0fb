package covers

import (
	"path"
	"strings"
	"unicode"
)

// Find returns the row of a file or link: its path is, or is below, one of the names of the
// row, in any folder, or it is in the place of a folder above such a name, where a link would
// lead to another one. Names count as the file system of any host may take them (see fold).
func Find(name string) (Entry, bool) {
	slashed := "/" + strings.Trim(fold(name), "/") + "/"
	if gitMatch(slashed) {
		return *git, true
	}
	parts := strings.Split(strings.Trim(slashed, "/"), "/")
	for i, part := range parts {
		for _, one := range starting[part] {
			if one.at(parts[i:]) {
				return *one.entry, true
			}
		}
		if !strings.Contains(part, "~") {
			continue
		}
		for _, some := range starting {
			for _, one := range some {
				if one.at(parts[i:]) {
					return *one.entry, true
				}
			}
		}
	}
	return Entry{}, false
}

// named is a name of a row in folded parts.
type named struct {
	parts []string
	entry *Entry
}

// at reports whether a path begins with the name, or the name with it.
func (n named) at(parts []string) bool {
	for i, part := range n.parts[:min(len(parts), len(n.parts))] {
		if parts[i] != part && !isShort(parts[i], part) {
			return false
		}
	}
	return true
}

var (
	// starting has all names by their first part.
	starting = make(map[string][]named)
	// git is the row of git itself.
	git *Entry
)

func init() {
	for i := range Table {
		e := &Table[i]
		for _, name := range e.Names {
			parts := strings.Split(fold(name), "/")
			starting[parts[0]] = append(starting[parts[0]], named{parts, e})
			if name == ".git/config" {
				git = e
			}
		}
	}
}

// Same reports whether some file system takes two names, without slashes, for the same.
func Same(a, b string) bool {
	a, b = fold(a), fold(b)
	return a == b || isShort(a, b)
}

// fold returns a path so that paths are equal which some file system takes for the same:
// those that ignore case, HFS+ with its characters that count for nothing, and NTFS with
// its streams and the dots and spaces at the end of names. Git protects .git by these rules.
func fold(name string) string {
	plain := true
	for i := range len(name) {
		c := name[i]
		plain = plain && c < 0x80 && (c < 'A' || c > 'Z') && c != ':' && c != ' ' && (c != '.' || i+1 < len(name) && name[i+1] != '/')
	}
	if plain {
		return name
	}
	parts := strings.Split(strings.Map(foldRune, name), "/")
	for i, part := range parts {
		part, _, _ = strings.Cut(part, ":")
		if trimmed := strings.TrimRight(part, " ."); trimmed != "" {
			parts[i] = trimmed
		}
	}
	return strings.Join(parts, "/")
}

// foldRune returns a letter in lower case, and -1 for a character that HFS+ ignores.
func foldRune(r rune) rune {
	switch {
	case r >= 'A' && r <= 'Z':
		return r + 'a' - 'A'
	case r < 0x80:
		return r
	case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
		return -1
	}
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return unicode.ToLower(least)
}

// isShort reports whether a folded name can be the short name of another on FAT and NTFS:
// the first six characters, a tilde, a number and three characters of the ending; or the
// first two with four hexadecimal digits.
func isShort(name, long string) bool {
	begin, end, _ := strings.Cut(name, ".")
	first, number, ok := strings.Cut(begin, "~")
	if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
		return false
	}
	long = strings.TrimLeft(long, ".")
	ending := strings.TrimPrefix(path.Ext(long), ".")
	long = strings.NewReplacer(".", "", " ", "").Replace(strings.TrimSuffix(long, path.Ext(long)))
	if end != ending[:min(3, len(ending))] || len(first) < 2 {
		return false
	}
	hashed := len(first) == 6 && strings.HasPrefix(long, first[:2]) && strings.Trim(first[2:], "0123456789abcdef") == ""
	return hashed || first == long[:min(6, len(long), max(2, 7-len(number)))]
}
