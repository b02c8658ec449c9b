//go:build man

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// With the tag man this program writes manual pages and nothing else: qlogd man DIR. The released
// one is built without it, and so without a reader of markdown.
func init() {
	if len(os.Args) != 3 || os.Args[1] != "man" {
		fmt.Fprintln(os.Stderr, "usage: qlogd man DIR")
		os.Exit(exitUsage)
	}
	if err := writeManual(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "qlogd:", err)
		os.Exit(exitFailed)
	}
	os.Exit(exitOK)
}

// writeManual writes a page of each command into dir.
func writeManual(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := (&app{}).rootCmd()
	root.InitDefaultVersionFlag()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	asMarkdown(root)
	// The date is that of SOURCE_DATE_EPOCH.
	return doc.GenManTree(root, &doc.GenManHeader{
		Section: "1", Source: "qlogd " + build().Version, Manual: "qlogd manual",
	}, dir)
}

var escape = strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "`", "\\`",
	"[", `\[`, "#", `\#`, "&", `\&`).Replace

// asMarkdown turns the texts of a command and of those below it into markdown.
func asMarkdown(cmd *cobra.Command) {
	cmd.Short = escape(cmd.Short)
	paragraphs := strings.Split(cmd.Long, "\n\n")
	for i, p := range paragraphs {
		if strings.Contains("\n"+p, "\n  ") { // a list, whose lines are kept
			paragraphs[i] = "```\n" + p + "\n```"
		} else {
			paragraphs[i] = escape(p)
		}
	}
	cmd.Long = strings.Join(paragraphs, "\n\n")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() != "bool" {
			describeValue(f)
		}
		f.Usage = escape(f.Usage)
	})
	for _, sub := range cmd.Commands() {
		asMarkdown(sub)
	}
}

// describeValue puts the kind of a flag's value where a page would have its default, and the
// default, which is no other machine's, at the end of the text.
func describeValue(f *pflag.Flag) {
	host, _ := os.Hostname()
	switch f.DefValue {
	case "", "0", "[]", host:
	default:
		f.Usage += fmt.Sprintf(" (default %s)", f.DefValue)
	}
	kind, _ := pflag.UnquoteUsage(f)
	f.DefValue, f.Value = kind, kinded{f.Value, "man"} // a string would be in quotes
}
