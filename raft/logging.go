package raft

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// hlogger is the part of an hclog.Logger that hashicorp/raft uses, on slog.
type hlogger struct {
	hclog.Logger // of the rest: logs nothing
	logger       *slog.Logger
	repeated     *repeated
}

func hlog(logger *slog.Logger, name string) hclog.Logger {
	return &hlogger{
		Logger: hclog.NewNullLogger(), logger: logger.With("from", name),
		repeated: &repeated{at: map[string]*throttle{}},
	}
}

// slogLevel ranks a library's levels one below ours: its news (a snapshot began) is
// detail to an operator of qlogd. Warnings stay.
func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Error:
		return slog.LevelError
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Info:
		return slog.LevelDebug
	}
	return slog.LevelDebug - 4
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
		case error:
			a = v.Error()
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
	"failed to heartbeat to": true, "failed to appendEntries to": true, "failed to send snapshot to": true,
	"failed to decode incoming command": true, "failed to get previous log": true,
	"appendEntries rejected, sending older logs": true, "failed to make requestVote RPC": true,
	"failed to flush response": true,
}

// again are the messages that it repeats while a node is cut off. They are logged once
// a minute.
var again = map[string]bool{
	"Election timeout reached, restarting election": true, "rejecting pre-vote request since we have a leader": true,
	"rejecting vote request since we have a leader": true, electionStarts: true,
	"failed to contact": true, "failed to contact quorum of nodes, stepping down": true,
	"pre-vote campaign failed, waiting for election timeout": true,
}

// electionStarts comes with the last leader's address and id.
const electionStarts = "heartbeat timeout reached, starting election"

// repeated throttles each message; loggers derived from one another share it.
type repeated struct {
	mu sync.Mutex
	at map[string]*throttle
}

func (r *repeated) due(msg string) bool {
	r.mu.Lock()
	t := r.at[msg]
	if t == nil {
		t = &throttle{}
		r.at[msg] = t
	}
	r.mu.Unlock()
	return t.due(time.Now())
}

func (h *hlogger) Log(level hclog.Level, msg string, args ...any) {
	l := slogLevel(level)
	if routine[msg] || again[msg] && !h.repeated.due(msg) {
		l = slog.LevelDebug
	}
	if msg == electionStarts && len(args) == 4 && fmt.Sprint(args[3]) == "" && l == slog.LevelWarn {
		l = slog.LevelInfo // no leader was known before: a node has started
	}
	if !h.logger.Enabled(context.Background(), l) {
		return // before plain renders anything
	}
	h.logger.Log(context.Background(), l, msg, plain(args)...)
}

func (h *hlogger) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hlogger) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hlogger) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hlogger) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hlogger) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hlogger) With(args ...any) hclog.Logger {
	return &hlogger{Logger: h.Logger, logger: h.logger.With(plain(args)...), repeated: h.repeated}
}

func (h *hlogger) Named(string) hclog.Logger      { return h }
func (h *hlogger) ResetNamed(string) hclog.Logger { return h }

// throttle reports whether at least a minute has passed since due last returned true.
type throttle struct {
	mu sync.Mutex
	at time.Time
}

func (t *throttle) due(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.at.IsZero() && now.Sub(t.at) < time.Minute {
		return false
	}
	t.at = now
	return true
}
