package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Exit codes (contract.md section 11).
const (
	exitOK         = 0
	exitFailed     = 1
	exitUsage      = 2
	exitDifference = 3
	// exitDiverged ends a node that differs from the majority of its cluster
	// (I18), and one whose data directory is not, or no more, of the cluster that
	// it is started in. A supervisor is to leave it so: starting it again does not help
	// (RestartPreventExitStatus=78).
	exitDiverged = 78
)

// exitError carries an exit code up to run. A nil err ends without a word:
// what there was to say is said.
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

// usagef is an error of whoever typed the command.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is what every subcommand shares: the streams, and how to write to them.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	output         string
	reach          reach
	getenv         func(string) string
	started        time.Time
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
	for _, p := range []string{"unknown command", "unknown flag", "unknown shorthand", "required flag", "invalid argument", "accepts ", "requires at least", "flag needs an argument", "if any flags in the group", "at least one of the flags", "bad flag syntax"} {
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
		a.messageCmd(), a.deadCmd(), a.taskCmd(), a.eventsCmd(), a.webhookCmd(), a.applyCmd(), a.exportCmd(), a.clusterCmd(), a.readyCmd(), a.benchCmd(),
		a.tokenCmd(), a.versionCmd(),
	)
	return root
}

// group is a command that only holds others: without one of them it tells
// which there are.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("unknown command %.64q for %s; see %s --help", args[0], c.CommandPath(), c.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		_ = c.Help()
		return &exitError{code: exitUsage}
	}
	cmd.AddCommand(subs...)
	return cmd
}

// args wraps cobra's checks so that a wrong number of arguments is told as the
// user's mistake.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// terminal reports whether a stream is one.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
