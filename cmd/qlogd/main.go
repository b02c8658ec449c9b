// Command qlogd is an event-sourced message queue: the server, the forensic
// replay of its log, and the client, in one binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes (contract.md section 11).
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitDifference = 3
	// exitDiverged ends a node that differs from the majority of its cluster
	// (I18), or whose data directory is not of the cluster that it is started
	// in. Starting it again does not help, so a supervisor should not
	// (RestartPreventExitStatus=78).
	exitDiverged = 78
)

// exitError carries an exit code up to run. With a nil err, run prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// usagef returns an error caused by a wrong command line.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is what every command shares: the streams, and the common flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	started        time.Time

	output      string
	reach       reach
	yes, dryRun bool
}

// run is main as tests call it. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv, started: time.Now()}
	root := a.rootCmd()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitFailed
	var ee *exitError
	switch {
	case errors.As(err, &ee):
		code = ee.code
	case isUsage(err):
		code = exitUsage
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return exitFailed
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(stderr, "qlogd:", msg)
	}
	return code
}

// isUsage recognises the errors that cobra itself returns untyped.
func isUsage(err error) bool {
	for _, p := range []string{
		"unknown command", "unknown flag", "unknown shorthand", "required flag", "invalid argument",
		"accepts ", "requires at least", "flag needs an argument", "if any flags in the group",
		"at least one of the flags", "bad flag syntax",
	} {
		if strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
}

func (a *app) rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "qlogd",
		Short: "An event-sourced message queue",
		Long: `qlogd is an event-sourced message queue: every change of every message is an
event in a replicated, hash-chained log, and the past can be asked.

Start a node with "qlogd serve", then talk to it with the commands below, with
curl (http://127.0.0.1:7070/v1), or with any HTTP client.`,
		Example: `  qlogd serve
  qlogd queue create jobs
  echo '{"hello":"world"}' | qlogd enqueue jobs
  qlogd lease jobs --ack
  qlogd replay --from start`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %.64q; see qlogd --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(
		a.serveCmd(), a.configCmd(), a.replayCmd(), a.logCmd(), a.projectionsCmd(),
		a.queueCmd(), a.enqueueCmd(), a.leaseCmd(),
		a.ackCmd(), a.retryCmd(), a.deadLetterCmd(), a.extendCmd(), a.releaseCmd(),
		a.messageCmd(), a.deadCmd(), a.taskCmd(), a.eventsCmd(), a.webhookCmd(), a.applyCmd(),
		a.exportCmd(), a.clusterCmd(), a.readyCmd(), a.benchCmd(), a.tokenCmd(), a.versionCmd(),
	)
	return root
}

// Set by the Makefile (-ldflags -X); otherwise Go's own build information is used.
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
	return a.local("version", "Print version, commit and build date",
		"  qlogd version\n  qlogd version -o json", exactly(0),
		func(context.Context, []string) error {
			b := build()
			if a.output == "json" {
				return a.json(b)
			}
			return a.say(nil, "qlogd %s (commit %s, built %s, %s %s/%s)",
				b.Version, b.Commit, b.Date, b.Go, b.OS, b.Arch)
		})
}
