package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
)

// process is one run of the program.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it is gone
	err  error         // how it ended; read after done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// logFile takes what all runs of a node write.
type logFile struct {
	path string
	mu   sync.Mutex
	f    *os.File
}

func newLogFile(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &logFile{path: path, f: f}, err
}

func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(b)
}

func (l *logFile) Close() { _ = l.f.Close() }

// tail returns the last lines.
func (l *logFile) tail(lines int) string {
	b, err := os.ReadFile(l.path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
