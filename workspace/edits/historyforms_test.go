package edits

import "strings"

// form is how the files of a work tree differ from what git stores of them.
type form struct {
	name string
	// user has settings of the user, and repository those of the repository itself.
	user       string
	repository []string
	// attributes are there from the beginning, and later is what a side adds on the way.
	attributes, later string
	// work writes a file as the user has it, and as the sandbox may write it.
	work []func(string) string
	// stored is what git stores; nil if that changes on the way.
	stored func(string) string
	// modes means that all files of the folder are executable, and none in git.
	modes bool
}

func same(text string) string { return text }

func crlf(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") }

// utf16 writes a text in two bytes per character, with a mark at the beginning.
func utf16(text string) string {
	var out strings.Builder
	out.WriteString("\xff\xfe")
	for i := range len(text) {
		out.WriteString(text[i:i+1] + "\x00")
	}
	return out.String()
}

var forms = []form{
	{name: "autocrlf", user: "[core]\n\tautocrlf = true\n", work: []func(string) string{crlf, same}, stored: same},
	{name: "input", repository: []string{"core.autocrlf=input"}, work: []func(string) string{same, crlf}, stored: same},
	{name: "eol", attributes: "* text eol=crlf\n", work: []func(string) string{crlf, same}, stored: same},
	{name: "required", user: upperCase + "\trequired\n", attributes: allCase, work: []func(string) string{same, strings.ToUpper}, stored: strings.ToUpper},
	{name: "optional", user: upperCase, attributes: allCase, work: []func(string) string{same, strings.ToUpper}, stored: strings.ToUpper},
	{name: "broken", user: "[filter \"case\"]\n\tclean = false\n\tsmudge = false\n", attributes: allCase, work: []func(string) string{same}, stored: same},
	{
		name: "its own", repository: []string{"filter.case.clean=tr a-z A-Z", "filter.case.smudge=tr A-Z a-z", "filter.case.required=true"},
		attributes: allCase, work: []func(string) string{same}, stored: strings.ToUpper,
	},
	{name: "encoding", attributes: "* working-tree-encoding=UTF-16LE-BOM\n.git* -working-tree-encoding\n", work: []func(string) string{utf16}, stored: same},
	{name: "modes", repository: []string{"core.fileMode=false"}, work: []func(string) string{same}, stored: same, modes: true},
	{name: "auto later", later: "* text=auto\n", work: []func(string) string{same, crlf}},
	{name: "text later", later: "* text\n", work: []func(string) string{crlf, same}},
	{name: "filter later", user: upperCase + "\trequired\n", later: allCase, work: []func(string) string{same}},
}

// formOf is the form of a history: every second one has none.
func formOf(seed uint64) form {
	if seed%2 == 0 {
		return form{name: "plain", work: []func(string) string{same}, stored: same}
	}
	return forms[seed/2%uint64(len(forms))]
}
