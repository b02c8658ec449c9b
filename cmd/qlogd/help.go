package main

import (
	"cmp"
	_ "embed"
	"maps"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

// helpText describes each command: after "# " its name and aliases, as in list|ls, and its
// arguments, of which WORD is required, [WORD] optional, and … allows several; then a line,
// a longer text, flags and examples. The last section has flags of many commands.
//
//go:embed help.txt
var helpText string

// sections are the texts of helpText by the command's full name without aliases.
var sections = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for section := range strings.SplitSeq(strings.TrimPrefix(helpText, "# "), "\n# ") {
		var name []string
		title, _, _ := strings.Cut(section, "\n")
		for word := range strings.FieldsSeq(title) {
			if word[0] < 'a' || word[0] > 'z' {
				break
			}
			word, _, _ = strings.Cut(word, "|")
			name = append(name, word)
		}
		all[strings.Join(name, " ")] = section
	}
	return all
})

// describe returns the command of a section of the help.
func describe(name string) *cobra.Command {
	title, text, ok := strings.Cut(sections()[name], "\n")
	if !ok {
		panic("help.txt does not describe " + name)
	}
	text, example, _ := strings.Cut(text, "\n\nExamples:\n")
	text, flags, _ := strings.Cut(text, "\n\nFlags:\n")
	short, long, _ := strings.Cut(text, "\n\n")
	words := strings.Fields(title)[strings.Count(name, " "):]
	aliases := strings.Split(words[0], "|")
	words[0] = aliases[0]
	least, most := 0, 0
	for _, word := range words[1:] {
		if word[0] == '-' || word[0] == '|' {
			break // a flag, or another form
		}
		if most++; word[0] != '[' {
			least++
		}
		if strings.Contains(word, "…") {
			most = 1 << 30
		}
	}
	return &cobra.Command{
		Use: strings.Join(words, " "), Aliases: aliases[1:],
		Short: short, Long: strings.TrimSpace(long), Example: strings.TrimRight(example, "\n"),
		Annotations: flagTexts(flags),
		Args: func(cmd *cobra.Command, args []string) error {
			if n := len(args); n < least || n > most {
				return usagef("%s given; usage: %s",
					plural(n, "argument", "arguments"), cmd.UseLine())
			}
			return nil
		},
	}
}

// flagTexts returns the texts of a command's flags by name. A line that begins with more than
// two spaces continues the one before; "those of COMMAND" adds those of another.
func flagTexts(lines string) map[string]string {
	texts := map[string]string{}
	name := ""
	for line := range strings.Lines(lines) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(line, "   ") {
			texts[name] += " " + text
			continue
		}
		name, text, _ = strings.Cut(text, " ")
		if text = strings.TrimSpace(text); name == "those" { // of COMMAND
			maps.Copy(texts, describe(strings.TrimPrefix(text, "of ")).Annotations)
		} else {
			texts[name] = text
		}
	}
	return texts
}

// flagText returns the text of a flag of a command.
func flagText(cmd *cobra.Command, name string) string {
	text := cmp.Or(cmd.Annotations[name], shared()[name])
	if text == "" {
		panic("help.txt does not describe --" + name + " of " + cmd.Name())
	}
	return text
}

// shared are the texts of flags of many commands.
var shared = sync.OnceValue(func() map[string]string { return describe("flags").Annotations })
