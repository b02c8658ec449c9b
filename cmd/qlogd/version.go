package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the Makefile (-ldflags -X); without them the build information that
// Go keeps serves.
var (
	version = ""
	commit  = ""
	date    = ""
)

type buildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func build() buildInfo {
	b := buildInfo{version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Commit == "":
				b.Commit = s.Value
			case s.Key == "vcs.time" && b.Date == "":
				b.Date = s.Value
			}
		}
	}
	for _, s := range []*string{&b.Version, &b.Commit, &b.Date} {
		if *s == "" {
			*s = "unknown"
		}
	}
	return b
}

func (a *app) versionCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and build date",
		Example: "  qlogd version\n  qlogd version -o json",
		Args:    args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			b := build()
			if a.output == "json" {
				return a.json(b)
			}
			_, err := fmt.Fprintf(a.stdout, "qlogd %s (commit %s, built %s, %s %s/%s)\n", b.Version, b.Commit, b.Date, b.Go, b.OS, b.Arch)
			return err
		},
	}
	a.outputFlag(cmd)
	return cmd
}
