package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api"
)

var tokenCommands = group("token",
	local("token new", func(c request, f *struct {
		Name, Expires, Append string
		Role, Queues          []string
		TTL                   time.Duration
	}) error {
		if f.TTL < 0 || f.TTL > 0 && f.Expires != "" {
			return usagef("--ttl must be positive, and does not go with --expires")
		}
		if f.TTL > 0 {
			f.Expires = time.Now().Add(f.TTL).UTC().Format(time.RFC3339)
		}
		return c.newToken(api.TokenEntry{Name: f.Name, Roles: f.Role, Queues: f.Queues,
			Expires: f.Expires}, f.Append)
	}, func(_ *app, cmd *cobra.Command) {
		_ = cmd.MarkFlagRequired("name")
		_ = cmd.MarkFlagRequired("role")
	}),
	local("token check", func(c request, _ *none) error {
		auth, err := api.LoadAuth(c.args[0])
		if err != nil {
			return err
		}
		return c.say(named{"tokens": auth.Tokens()},
			"%s: %s", c.args[0], plural(auth.Tokens(), "token", "tokens"))
	}),
)

// newToken prints a new token and its entry, or appends the entry to a file.
func (a *app) newToken(e api.TokenEntry, file string) error {
	token, field, err := e.NewToken()
	if err != nil {
		return usagef("--%s %w", strings.Replace(field, "roles", "role", 1), err)
	}
	entry, err := yaml.Marshal([]api.TokenEntry{e})
	if err != nil {
		return err
	}
	if file != "" {
		if err := appendToken(file, entry); err != nil {
			return err
		}
	}
	switch {
	case a.output == "json":
		return a.wire(struct {
			Token string `json:"token"`
			api.TokenEntry
		}{token, e})
	case file != "":
		fmt.Fprintf(a.stderr, "%s appended to %s; the token is shown this once:\n", e.Name, file)
		fmt.Fprintln(a.stdout, token)
	default:
		fmt.Fprintf(a.stdout, "%s\n\n%s", token, entry)
	}
	return nil
}

// appendToken appends an entry to an auth file. A file with a mistake is left as it is.
func appendToken(file string, entry []byte) error {
	if to, err := filepath.EvalSymlinks(file); err == nil {
		file = to // the file is replaced, not a link to it
	}
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("auth file: %w", err)
	}
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	text = append(text, entry...)
	if err := api.CheckAuth(text); err != nil {
		return fmt.Errorf("%s is left as it is: with the new entry it would be wrong: line %w",
			file, err)
	}
	if err := replaceFile(file, text, mode); err != nil {
		return fmt.Errorf("auth file: %w", err)
	}
	return nil
}
