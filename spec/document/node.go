// Package document reads the text of a configuration file into a tree with line numbers,
// and a tree into a message of the API. It continues after a mistake, so that all
// mistakes are reported at once.
//
// It also parses short texts for numbers and messages of the API: sizes, durations, ports,
// mounts. Sandbox files, compose files and the flags of the CLI use it. The errors of that are
// parts of a sentence that say what is right, for example
// `"4gg" is not a size: write a number and k, m, g or t, for example 512m`.
package document

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Kind is the kind of a node.
type Kind int

// The kinds of nodes.
const (
	Null Kind = iota
	Bool
	Int
	Float
	String
	List
	Map
)

// Node is a value in a file.
type Node struct {
	Kind Kind
	// Text is a scalar as written, without quotes and escapes.
	Text string
	// Items are the elements of a list.
	Items []*Node
	// Entries are the keys of a map, in the order of the file, without duplicates.
	Entries []Entry
	// Line and Column are the start of the value, from 1.
	Line, Column int
	// File is set if the value is from another file than the tree around it.
	File string
}

// Entry is a key of a map with its value.
type Entry struct {
	Key   *Node
	Value *Node
}

// Get returns the value of a key, or nil if the key is missing.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	for _, e := range n.Entries {
		if e.Key.Text == key {
			return e.Value
		}
	}
	return nil
}

// Take removes a key and returns its entry. Its values are nil if the key is missing.
func (n *Node) Take(key string) Entry {
	for i, e := range n.Entries {
		if e.Key.Text == key {
			n.Entries = append(n.Entries[:i:i], n.Entries[i+1:]...)
			return e
		}
	}
	return Entry{}
}

// what names a node in a sentence.
func (n *Node) what() string {
	switch n.Kind {
	case Null:
		return "nothing"
	case List:
		return "a list"
	case Map:
		return "a map"
	case Bool:
		return n.Text
	}
	return shorten(n.Text)
}

// Word returns the text of a scalar; empty for another node, and for none.
func (n *Node) Word() string {
	if n == nil {
		return ""
	}
	return n.Text
}

// scalar reports whether a node is neither a list nor a map.
func (n *Node) scalar() bool { return n.Kind != List && n.Kind != Map }

// Origin says where a field of a message comes from.
type Origin struct {
	// File as given by the caller. Empty if the field comes from no file.
	File string
	// Line and Column are from 1. 0 if unknown.
	Line, Column int
	// Path is the path of the field in its own file, for example "services[0].image".
	Path string
	// Fields are the fields of a message, or the keys of a map, that the file sets.
	Fields map[string]*Origin
	// Items are the origins of the items of a list.
	Items []*Origin
}

// Under returns the origin of a part of o that has none of its own.
func (o *Origin) Under(path string) *Origin {
	return &Origin{File: o.File, Line: o.Line, Column: o.Column, Path: path}
}

// Report collects problems and notices.
type Report struct {
	Problems []*agboxv1.SpecProblem
	Notices  []*agboxv1.SpecProblem
	// spoiled has the fields that were already reported: each mistake is reported once.
	spoiled map[string]bool
}

// MaxProblems bounds the number of problems: a file of another kind would have one in
// every line.
const MaxProblems = 100

// Problem reports that the field at o is wrong, unless the field was reported before.
func (r *Report) Problem(o *Origin, format string, args ...any) {
	if r.Spoiled(o) {
		return
	}
	r.Spoil(o.File, o.Path)
	if len(r.Problems) < MaxProblems {
		r.Problems = append(r.Problems, problem(o, format, args...))
	}
}

// Notice reports something that is not an error.
func (r *Report) Notice(o *Origin, format string, args ...any) {
	if len(r.Notices) < MaxProblems {
		r.Notices = append(r.Notices, problem(o, format, args...))
	}
}

// Spoil suppresses further problems of a field.
func (r *Report) Spoil(file, path string) {
	if r.spoiled == nil {
		r.spoiled = make(map[string]bool)
	}
	r.spoiled[file+":"+path] = true
}

// Spoiled reports whether the field at o was reported before.
func (r *Report) Spoiled(o *Origin) bool { return o.Path != "" && r.spoiled[o.File+":"+o.Path] }

// maxPart is how many characters of a text, such as a name in the file, a message has.
const maxPart = 400

// Quoting formats a message, and shortens the texts in it, which files may have made as long as
// themselves. The format "%s" stands for a whole sentence, which was made by Quoting or the like.
func Quoting(format string, args ...any) string {
	for i, arg := range args {
		if text, ok := arg.(string); ok && format != "%s" {
			args[i] = cut(text, maxPart)
		}
	}
	return fmt.Sprintf(format, args...)
}

func problem(o *Origin, format string, args ...any) *agboxv1.SpecProblem {
	message := Quoting(format, args...)
	if !strings.HasSuffix(message, ".") {
		message += "."
	}
	return &agboxv1.SpecProblem{
		File: o.File, Line: uint32(o.Line), Column: uint32(o.Column),
		Field: strings.Map(visible, o.Path), Message: strings.Map(visible, message),
	}
}

// visible replaces control characters, so that a file cannot control the reader's
// terminal.
func visible(c rune) rune {
	if unicode.IsPrint(c) {
		return c
	}
	return '?'
}

// Child returns the path of a key below a path.
func Child(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Item returns the path of an element of the list at a path.
func Item(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// Key returns the path of a key of the map at a path. The key may have any characters.
func Key(path, key string) string { return fmt.Sprintf("%s[%s]", path, shorten(key)) }

// shorten returns a shortened text in quotes.
func shorten(text string) string {
	const most = 80
	return fmt.Sprintf("%q", cut(text, most))
}

// cut returns at most some characters of a text.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}

// Line formats a problem as one line: "FILE:LINE:COLUMN: FIELD: SENTENCE", without
// unknown parts.
func Line(p *agboxv1.SpecProblem) string {
	var b strings.Builder
	if p.GetFile() != "" {
		b.WriteString(p.GetFile())
		for _, n := range []uint32{p.GetLine(), p.GetColumn()} {
			if n > 0 {
				fmt.Fprintf(&b, ":%d", n)
			}
		}
		b.WriteString(": ")
	}
	if p.GetField() != "" {
		b.WriteString(p.GetField() + ": ")
	}
	return b.String() + p.GetMessage()
}

const durationName = protoreflect.FullName("google.protobuf.Duration")

// Describe makes the origin of a message that comes as a whole from one place in a file,
// or from no file.
func Describe(m protoreflect.Message, at *Origin) *Origin {
	o := at.Under(at.Path)
	o.Fields = make(map[string]*Origin)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		child := at.Under(Child(at.Path, string(f.Name())))
		switch {
		case f.IsMap():
			child.Fields = make(map[string]*Origin)
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				child.Fields[k.String()] = at.Under(Key(child.Path, k.String()))
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				item := at.Under(Item(child.Path, i))
				if f.Kind() == protoreflect.MessageKind {
					item = Describe(v.List().Get(i).Message(), item)
				}
				child.Items = append(child.Items, item)
			}
		case f.Kind() == protoreflect.MessageKind && f.Message().FullName() != durationName:
			child = Describe(v.Message(), child)
		}
		o.Fields[string(f.Name())] = child
		return true
	})
	return o
}

// replaced are the lists that a merge replaces instead of appending to.
var replaced = map[protoreflect.FullName]bool{
	"agbox.v1.CreateSpec.entrypoint": true, "agbox.v1.AgentSpec.command": true, "agbox.v1.AgentRetry.delays": true,
	"agbox.v1.AgentProbe.exec": true,
}

// Merge merges src over dst, with their origins: scalars replace, maps merge by key,
// lists append, messages merge field by field. An entrypoint and the command of an agent
// replace, because each is one program with its arguments, and so do the pauses of an
// agent, of which each has its place. A scalar that a file sets to its zero value also replaces.
func Merge(dst protoreflect.Message, dstAt *Origin, src protoreflect.Message, srcAt *Origin) {
	if dstAt.Fields == nil {
		dstAt.Fields = make(map[string]*Origin)
	}
	fields := src.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		at := srcAt.Fields[string(f.Name())]
		if at == nil {
			continue // every field that is set has an origin
		}
		name, before := string(f.Name()), dstAt.Fields[string(f.Name())]
		switch {
		case f.IsMap():
			dstAt.Fields[name] = mergeMap(dst.Mutable(f).Map(), before, src.Get(f).Map(), at)
		case f.IsList():
			if replaced[f.FullName()] {
				dst.Clear(f)
				before = nil
			}
			to, from := dst.Mutable(f).List(), src.Get(f).List()
			for j := range from.Len() {
				to.Append(from.Get(j))
			}
			if before != nil {
				at = &Origin{File: at.File, Line: at.Line, Column: at.Column, Path: at.Path, Items: append(slices.Clip(before.Items), at.Items...)}
			}
			dstAt.Fields[name] = at
		case f.Kind() == protoreflect.MessageKind && f.Message().FullName() != durationName:
			if before == nil {
				before = at.Under(at.Path)
				dstAt.Fields[name] = before
			}
			Merge(dst.Mutable(f).Message(), before, src.Get(f).Message(), at)
		case src.Has(f):
			dst.Set(f, src.Get(f))
			dstAt.Fields[name] = at
		default:
			dst.Clear(f)
			dstAt.Fields[name] = at
		}
	}
}

func mergeMap(dst protoreflect.Map, before *Origin, src protoreflect.Map, at *Origin) *Origin {
	out := at.Under(at.Path)
	out.Fields = make(map[string]*Origin)
	if before != nil {
		maps.Copy(out.Fields, before.Fields)
	}
	src.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		dst.Set(k, v)
		out.Fields[k.String()] = at.Fields[k.String()]
		return true
	})
	return out
}
