// Command qlogd is an event-sourced message queue: the server, the forensic
// replay of its log, and the client, in one binary.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/server"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitDifference = 3
	// exitDiverged ends a node that differs from the majority of its cluster (I18), or whose data
	// directory is an old copy, or not of the cluster that it is started in. Starting it again does
	// not help, so a supervisor should not (RestartPreventExitStatus=78).
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

// exitf returns an error with an exit code.
func exitf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// usagef returns an error caused by a wrong command line.
func usagef(format string, args ...any) error { return exitf(exitUsage, format, args...) }

// app is what every command shares: the streams, and the common flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	started        time.Time
	args           []string
	parsed         bool // the command line is accepted, and its command runs

	output      string
	reach       reach
	setBy       map[string]string // the flag that sets a field of the request
	yes, dryRun bool
}

// run is main as tests call it. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv,
		started: time.Now(), args: args}
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
	if ee, ok := errors.AsType[*exitError](err); ok {
		code = ee.code
	} else if _, ok := errors.AsType[server.DirectoryError](err); ok {
		code = exitDiverged
	} else if _, ok := errors.AsType[server.SettingsError](err); ok {
		code = exitUsage
	} else if !a.parsed {
		code = exitUsage
	} else if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitFailed
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(stderr, a.paint(stderr, text.FgRed, "qlogd:"), msg+rescue(err))
	}
	return code
}

// rescue names the commands that read a damaged log; "" for any other error.
func rescue(err error) string {
	c, ok := errors.AsType[*log.CorruptionError](err)
	if !ok || strings.HasSuffix(c.Segment, ".idx") { // an index is made again
		return ""
	}
	before := ""
	if c.LastGood > 0 {
		before = fmt.Sprintf("`qlogd replay --data-dir OLD --into NEW --to index:%d` keeps what is "+
			"before it, ", c.LastGood)
	}
	return "; " + before + "`qlogd replay --data-dir OLD --into NEW --salvage` every whole block"
}

func (a *app) rootCmd() *cobra.Command {
	root := group("qlogd", slices.Concat([]command{
		serveCommand, configCommands, replayCommand, logCommands, projectionsCommands,
		queueCommands, enqueueCommand, leaseCommand, messageCommands, deadCommands, undoCommand,
		taskCommands, attentionCommand, workersCommand, eventsCommand, webhookCommands,
		applyCommand, exportCommands,
		clusterCommands, readyCommand, benchCommand, tokenCommands, versionCommand,
		workCommand, topCommand, contextCommands, tlsCommands,
	}, settleCommands)...)(a)
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Version = build().String()
	root.SetVersionTemplate("qlogd {{.Version}}\n")
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
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

func (b buildInfo) String() string {
	return fmt.Sprintf("%s (commit %s, built %s, %s %s/%s)",
		b.Version, b.Commit, b.Date, b.Go, b.OS, b.Arch)
}

func build() buildInfo {
	info, _ := debug.ReadBuildInfo()
	info = cmp.Or(info, &debug.BuildInfo{})
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return buildInfo{
		Version: cmp.Or(version, info.Main.Version, "unknown"),
		Commit:  cmp.Or(commit, settings["vcs.revision"], "unknown"),
		Date:    cmp.Or(date, settings["vcs.time"], "unknown"),
		Go:      runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
}

var versionCommand = local("version", func(c request, _ *none) error {
	b := build()
	return c.say(b, "qlogd %s", b)
})
