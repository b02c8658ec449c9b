package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
)

// contexts is the file of the user's clusters. It may hold tokens.
type contexts struct {
	Current  string             `yaml:"current,omitempty"`
	Contexts map[string]*target `yaml:"contexts"`
}

// target is how a cluster is reached.
type target struct {
	Addr      string `yaml:"addr" json:"addr"`
	TokenFile string `yaml:"token-file,omitempty" json:"token_file,omitempty"`
	Token     string `yaml:"token,omitempty" json:"-"`
	CACert    string `yaml:"ca-cert,omitempty" json:"ca_cert,omitempty"`
}

func contextsFile() (string, error) {
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "qlogd", "contexts.yaml"), err
}

// readContexts reads the file; there are no contexts without it.
func readContexts() (c contexts, err error) {
	file, err := contextsFile()
	if err != nil {
		return c, err
	}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && len(bytes.TrimSpace(b)) > 0 {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	for name, t := range c.Contexts {
		if t == nil || t.Addr == "" {
			return c, fmt.Errorf("%s: context %q has no addr", file, name)
		}
	}
	if c.Contexts == nil {
		c.Contexts = map[string]*target{}
	}
	return c, nil
}

// write replaces the file as a whole.
func (c *contexts) write() error {
	file, err := contextsFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	return replaceFile(file, b, 0o600)
}

// target returns the context that a command uses, an empty one for none. An address from
// a flag or the environment sets the current context aside, so that no other server gets its token;
// a context that is named is used for what the address leaves open.
func (a *app) target() (target, error) {
	name := cmp.Or(a.reach.context, a.getenv("QLOGD_CONTEXT"))
	if name == "" && cmp.Or(a.reach.Addr, a.getenv("QLOGD_ADDR")) != "" {
		return target{}, nil
	}
	if _, err := contextsFile(); err != nil && name == "" {
		return target{}, nil // a daemon's environment, without a home
	}
	c, err := readContexts()
	if err != nil {
		return target{}, usagef("%w", err)
	}
	if name = cmp.Or(name, c.Current); name == "" {
		return target{}, nil
	}
	t := c.Contexts[name]
	if t == nil {
		return target{}, usagef("there is no context %.64q; see qlogd context list", name)
	}
	return *t, nil
}

// reach is how a command reaches a server, as flags say it: the nodes of a target, or a context.
type reach struct {
	target
	context string
}

func (a *app) addrFlag(cmd *cobra.Command) { opt(cmd, &a.reach.Addr, "addr") }
func (a *app) caFlag(cmd *cobra.Command)   { opt(cmd, &a.reach.CACert, "ca-cert") }
func (a *app) contextFlag(cmd *cobra.Command) {
	opt(cmd, &a.reach.context, "context")
}

func (a *app) authFlags(cmd *cobra.Command) {
	opt(cmd, &a.reach.Token, "token")
	opt(cmd, &a.reach.TokenFile, "token-file")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	a.caFlag(cmd)
}

// reached returns how to reach the server. What no flag names comes from the environment, then from
// the context.
func (a *app) reached() (target, error) {
	of, err := a.target()
	env := target{a.getenv("QLOGD_ADDR"), a.getenv("QLOGD_TOKEN_FILE"), a.getenv("QLOGD_TOKEN"),
		a.getenv("QLOGD_CA_CERT")}
	for _, t := range []target{env, a.reach.target} {
		of.Addr, of.CACert = cmp.Or(t.Addr, of.Addr), cmp.Or(t.CACert, of.CACert)
		if t.Token+t.TokenFile != "" { // a flag goes before both variables
			of.Token, of.TokenFile = t.Token, t.TokenFile
		}
	}
	of.Addr = cmp.Or(of.Addr, defaultAddr)
	return of, err
}

// server returns a client of the server that flags, environment or context name.
func (a *app) server(more ...client.Option) (*client.Client, error) {
	t, err := a.reached()
	if err != nil {
		return nil, err
	}
	if t.Token == "" && t.TokenFile != "" {
		b, err := os.ReadFile(t.TokenFile)
		if err != nil {
			return nil, usagef("token: %w", err)
		}
		if t.Token = strings.TrimSpace(string(b)); t.Token == "" {
			return nil, usagef("token: %s is empty", t.TokenFile)
		}
	}
	return t.connect(append(more, client.WithToken(t.Token))...)
}

// ask calls a server. If it refuses the arguments, that is wrong usage.
func (c request) ask(do func(c request) error, more ...client.Option) (err error) {
	if c.Client, err = c.server(more...); err != nil {
		return err
	}
	return c.refusal(do(c))
}

// connect returns a client without a token.
func (t *target) connect(opts ...client.Option) (*client.Client, error) {
	// A person waits: fail soon where no server answers.
	retry := client.Retry{Attempts: 4, Min: 50 * time.Millisecond, Max: 2 * time.Second}
	opts = append(opts, client.WithRetry(retry), client.WithUserAgent("qlogd-cli/"+build().Version))
	if t.CACert != "" {
		opts = append(opts, client.WithCACert(t.CACert))
	}
	c, err := client.New(t.Addr, opts...)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return c, nil
}

// contextLine is a context as list prints it.
type contextLine struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	target
}

var contextCommands = group("context",
	local("context list", func(c request, _ *none) error {
		all, err := readContexts()
		if err != nil {
			return err
		}
		var lines []contextLine
		for _, name := range sortedKeys(all.Contexts) {
			lines = append(lines, contextLine{name, name == all.Current, *all.Contexts[name]})
		}
		return list(c.app, lines, nil, "current,context,addr,token,ca-cert",
			func(l *contextLine) []any {
				current, token := "", cmp.Or(l.TokenFile, "-")
				if l.Current {
					current = "*"
				}
				if l.Token != "" {
					token = "(set)"
				}
				return []any{current, l.Name, l.Addr, token, cmp.Or(l.CACert, "-")}
			})
	}),
	plain("context add", func(c request, _ *none) error {
		name := c.args[0]
		if !event.ValidName(name) {
			return usagef("a context's name must match %s, not %.64q", event.Names, name)
		}
		t := c.reach.target
		for _, file := range []*string{&t.TokenFile, &t.CACert} {
			if *file == "" {
				continue
			}
			var err error
			if *file, err = filepath.Abs(*file); err != nil {
				return err
			}
		}
		if t.Addr == "" {
			return usagef("--addr is needed: the address of a node, or of several")
		}
		if t.Token != "" && t.TokenFile != "" {
			return usagef("--token and --token-file exclude each other")
		}
		if _, err := t.connect(); err != nil {
			return err
		}
		return c.editContexts(func(all *contexts) (string, error) {
			all.Contexts[name] = &t
			all.Current = cmp.Or(all.Current, name)
			return "context " + name + " added", nil
		})
	}, (*app).addrFlag, (*app).authFlags),
	plain("context use", func(c request, _ *none) error {
		return c.editContexts(func(all *contexts) (string, error) {
			if all.Contexts[c.args[0]] == nil {
				return "", usagef("there is no context %.64q; see qlogd context list", c.args[0])
			}
			all.Current = c.args[0]
			return "context " + all.Current + " is in use", nil
		})
	}),
	plain("context remove", func(c request, _ *none) error {
		return c.editContexts(func(all *contexts) (string, error) {
			name := c.args[0]
			if all.Contexts[name] == nil {
				return "", usagef("there is no context %.64q; see qlogd context list", name)
			}
			delete(all.Contexts, name)
			if all.Current == name {
				all.Current = ""
			}
			return "context " + name + " removed", nil
		})
	}),
)

// editContexts changes the file, and says what was done.
func (a *app) editContexts(edit func(all *contexts) (done string, err error)) error {
	all, err := readContexts()
	if err != nil {
		return err
	}
	done, err := edit(&all)
	if err == nil {
		err = all.write()
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, done)
	return err
}
