package raft

import (
	"context"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// hlogger is an hclog.Logger that writes to slog.
type hlogger struct {
	logger *slog.Logger
	name   string
	args   []any
	told   *tolds
}

var _ hclog.Logger = (*hlogger)(nil)

func hlog(logger *slog.Logger, name string) hclog.Logger {
	return &hlogger{logger: logger.With("from", name), name: name, told: &tolds{at: map[string]*minutely{}}}
}

// slogLevel ranks a library's levels one below ours: what it tells as news
// (a snapshot began) is detail to an operator of qlogd; warnings stay.
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

// routine is what hashicorp/raft calls an error and what happens whenever a node
// is stopped, started or away, at each try. That a node cannot be reached it
// tells once more, as "failed to contact".
var routine = map[string]bool{
	"failed to heartbeat to": true, "failed to appendEntries to": true, "failed to send snapshot to": true,
	"failed to decode incoming command": true, "failed to get previous log": true,
	"appendEntries rejected, sending older logs": true, "failed to make requestVote RPC": true,
	"failed to flush response": true,
}

// again is what it tells at each try of a node that is cut off: once a minute
// will do.
var again = map[string]bool{
	"Election timeout reached, restarting election": true, "rejecting pre-vote request since we have a leader": true,
	"rejecting vote request since we have a leader": true, "heartbeat timeout reached, starting election": true,
	"failed to contact": true, "failed to contact quorum of nodes, stepping down": true,
	"pre-vote campaign failed, waiting for election timeout": true,
}

// tolds remembers when each of these was told; loggers that are made of one
// another share it.
type tolds struct {
	mu sync.Mutex
	at map[string]*minutely
}

func (t *tolds) due(msg string) bool {
	t.mu.Lock()
	m := t.at[msg]
	if m == nil {
		m = &minutely{}
		t.at[msg] = m
	}
	t.mu.Unlock()
	return m.due(time.Now())
}

func (h *hlogger) Log(level hclog.Level, msg string, args ...any) {
	l := slogLevel(level)
	if routine[msg] || again[msg] && !h.told.due(msg) {
		l = slog.LevelDebug
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

func (h *hlogger) is(l hclog.Level) bool {
	return h.logger.Enabled(context.Background(), slogLevel(l))
}
func (h *hlogger) IsTrace() bool { return h.is(hclog.Trace) }
func (h *hlogger) IsDebug() bool { return h.is(hclog.Debug) }
func (h *hlogger) IsInfo() bool  { return h.is(hclog.Info) }
func (h *hlogger) IsWarn() bool  { return h.is(hclog.Warn) }
func (h *hlogger) IsError() bool { return h.is(hclog.Error) }

func (h *hlogger) ImpliedArgs() []any { return h.args }
func (h *hlogger) Name() string       { return h.name }

func (h *hlogger) With(args ...any) hclog.Logger {
	return &hlogger{logger: h.logger.With(plain(args)...), name: h.name, told: h.told, args: append(h.args[:len(h.args):len(h.args)], args...)}
}

func (h *hlogger) Named(name string) hclog.Logger {
	return &hlogger{logger: h.logger, name: h.name + "." + name, told: h.told, args: h.args}
}

func (h *hlogger) ResetNamed(name string) hclog.Logger {
	return &hlogger{logger: h.logger, name: name, told: h.told, args: h.args}
}

// SetLevel does nothing: the level is slog's.
func (h *hlogger) SetLevel(hclog.Level) {}

func (h *hlogger) GetLevel() hclog.Level {
	for _, l := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn} {
		if h.is(l) {
			return l
		}
	}
	return hclog.Error
}

func (h *hlogger) StandardLogger(opts *hclog.StandardLoggerOptions) *stdlog.Logger {
	return stdlog.New(h.StandardWriter(opts), "", 0)
}

func (h *hlogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return hlogWriter{h} }

type hlogWriter struct{ h *hlogger }

func (w hlogWriter) Write(p []byte) (int, error) {
	w.h.Info(strings.TrimSpace(string(p)))
	return len(p), nil
}

// minutely lets something be told once a minute.
type minutely struct {
	mu sync.Mutex
	at time.Time
}

func (m *minutely) due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.at.IsZero() && now.Sub(m.at) < time.Minute {
		return false
	}
	m.at = now
	return true
}
