// Package hlog logs with slog what HashiCorp's libraries log.
package hlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
)

// New returns a logger for the library of a name.
func New(logger *slog.Logger, name string) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off})
	l.RegisterSink(&sink{logger: logger.With("from", name)})
	return l
}

type sink struct {
	logger   *slog.Logger
	repeated sync.Map // message to *rate.Sometimes
}

// levels rank a library's levels one below ours: its news (a snapshot began) is
// detail to an operator of qlogd. Warnings stay.
var levels = map[hclog.Level]slog.Level{
	hclog.Error: slog.LevelError, hclog.Warn: slog.LevelWarn, hclog.Info: slog.LevelDebug,
	hclog.Debug: slog.LevelDebug - 4, hclog.Trace: slog.LevelDebug - 4,
}

// plain renders hclog's own formats.
func plain(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case hclog.Format:
			if f, ok := v[0].(string); ok {
				a = fmt.Sprintf(f, v[1:]...)
			}
		case fmt.Stringer:
			a = v.String()
		}
		out[i] = a
	}
	return out
}

// routine are the errors that hashicorp/raft logs at each attempt whenever a node stops,
// starts or is away. It logs an unreachable node once more, as "failed to contact".
var routine = map[string]bool{
	"failed to heartbeat to": true, "failed to appendEntries to": true,
	"failed to send snapshot to": true, "failed to get previous log": true,
	"appendEntries rejected, sending older logs": true, "failed to make requestVote RPC": true,
	"failed to decode incoming command": true, "failed to flush response": true,
	// Which write failed, and what to do, the store has logged.
	"failed to commit logs": true, "failed to append to logs": true,
}

// electionStarts comes with the last leader's address and id.
const electionStarts = "heartbeat timeout reached, starting election"

// Accept implements hclog.SinkAdapter.
func (s *sink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	l := levels[level]
	if routine[msg] {
		l = slog.LevelDebug
	}
	if l >= slog.LevelWarn { // the same may be logged at each attempt
		repeats := true
		each, _ := s.repeated.LoadOrStore(msg, &rate.Sometimes{Interval: time.Minute})
		each.(*rate.Sometimes).Do(func() { repeats = false })
		if repeats {
			l = slog.LevelDebug
		}
	}
	if msg == electionStarts && len(args) == 4 && fmt.Sprint(args[3]) == "" && l == slog.LevelWarn {
		l = slog.LevelInfo // no leader was known before: a node has started
	}
	if s.logger.Enabled(context.Background(), l) { // before plain renders anything
		s.logger.Log(context.Background(), l, msg, plain(args)...)
	}
}
