package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"time"
)

// serveAdmin serves pprof, and POST /debug/free, on an address of its own, where one is set: never
// where clients are.
func (n *node) serveAdmin() error {
	if n.c.AdminAddr == "" {
		return nil
	}
	l, err := net.Listen("tcp", n.c.AdminAddr)
	if err != nil {
		return fmt.Errorf("admin-addr: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	// Collects garbage and gives what is free back to the system: what is
	// resident afterwards is what the node needs.
	mux.HandleFunc("POST /debug/free", func(w http.ResponseWriter, _ *http.Request) {
		debug.FreeOSMemory()
		w.WriteHeader(http.StatusNoContent)
	})
	n.admin = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	n.logger.Info("profiles are served", "admin", l.Addr().String())
	n.work.Go(func() {
		if err := n.admin.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.logger.Error("admin listener ended", "error", err)
		}
	})
	return nil
}
