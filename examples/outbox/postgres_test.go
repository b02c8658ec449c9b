package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// postgres is a server of PostgreSQL with the outbox's table.
type postgres struct {
	*testing.T
	bin, data, port, url string
	as                   *syscall.Credential // nil: this user
	cmd                  *exec.Cmd
}

// startPostgres starts a server, or skips the test where PostgreSQL is not installed.
func startPostgres(t *testing.T) *postgres {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		t.Skip("PostgreSQL is not installed")
	}
	dir, err := os.MkdirTemp("", "outbox-") // its parents can be entered by another user
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir); _ = os.Remove(dir + ".log") })
	_, port, err := net.SplitHostPort(ports.Free(t))
	require.NoError(t, err)
	p := &postgres{T: t, bin: filepath.Dir(found[0]), data: dir, port: port,
		url: "postgres://postgres@127.0.0.1:" + port + "/postgres"}
	if os.Getuid() == 0 { // as whom it refuses to run
		u, err := user.Lookup("postgres")
		require.NoError(t, err)
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		require.NoError(t, os.Chown(dir, uid, gid))
		p.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	out, err := p.command("initdb", "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8",
		"--no-locale", "--no-sync").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.launch()
	t.Cleanup(p.kill)
	schema, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	p.exec(string(schema))
	p.exec("CREATE TABLE orders (id bigint PRIMARY KEY)")
	return p
}

func (p *postgres) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.data
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// launch starts the server, again and again while processes of a killed one still end.
func (p *postgres) launch() {
	p.Helper()
	patience, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	for patience.Err() == nil {
		p.cmd = p.command("postgres", "-D", p.data, "-c", "listen_addresses=127.0.0.1",
			"-c", "port="+p.port, "-c", "unix_socket_directories=")
		log, err := os.OpenFile(p.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		require.NoError(p, err)
		p.cmd.Stdout, p.cmd.Stderr = log, log
		require.NoError(p, p.cmd.Start())
		log.Close()
		ended := make(chan struct{})
		go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(ended) }(p.cmd)
		for {
			select {
			case <-ended:
			case <-time.After(20 * time.Millisecond):
				if c, err := pgx.Connect(patience, p.url); err == nil {
					c.Close(patience)
					return
				}
				continue
			}
			break
		}
	}
	p.Fatal("PostgreSQL does not start")
}

// kill ends the server as a crash does.
func (p *postgres) kill() { _ = p.cmd.Process.Kill() }

// connect returns a connection that ends with the test.
func (p *postgres) connect() *pgx.Conn {
	p.Helper()
	c, err := pgx.Connect(p.Context(), p.url)
	require.NoError(p, err)
	p.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (p *postgres) exec(sql string, args ...any) {
	p.Helper()
	c, err := pgx.Connect(p.Context(), p.url)
	require.NoError(p, err)
	defer c.Close(p.Context())
	_, err = c.Exec(p.Context(), sql, args...)
	require.NoError(p, err)
}

// count returns the number that a query selects.
func (p *postgres) count(sql string) (n int) {
	p.Helper()
	c, err := pgx.Connect(p.Context(), p.url)
	require.NoError(p, err)
	defer c.Close(p.Context())
	require.NoError(p, c.QueryRow(p.Context(), sql).Scan(&n))
	return n
}

func (p *postgres) waitEmpty() error {
	if n := p.count("SELECT count(*) FROM outbox WHERE error IS NULL"); n > 0 {
		return fmt.Errorf("%d rows are left", n)
	}
	return nil
}
