package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	f, err := os.CreateTemp(filepath.Dir(file), "contexts-") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// target returns the context that a command uses, an empty one for none. An address from
// a flag or the environment sets the current context aside, so that no other server gets its token;
// a context that is named is used for what the address leaves open.
func (a *app) target() (target, error) {
	name := cmp.Or(a.reach.context, a.getenv("QLOGD_CONTEXT"))
	if name == "" && cmp.Or(a.reach.addr, a.getenv("QLOGD_ADDR")) != "" {
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

func (a *app) contextFlag(cmd *cobra.Command) {
	opt(cmd, &a.reach.context, "context")
}

var contextCommands = group("context",
	local("context list", func(c request, _ *none) error {
		all, err := readContexts()
		if err != nil {
			return err
		}
		if c.output == "json" {
			for _, name := range sortedKeys(all.Contexts) {
				line := struct {
					Name    string `json:"name"`
					Current bool   `json:"current"`
					target
				}{name, name == all.Current, *all.Contexts[name]}
				if err := c.json(line); err != nil {
					return err
				}
			}
			return nil
		}
		return list(c.app, sortedKeys(all.Contexts), nil, "current,context,addr,token,ca-cert",
			func(name *string) []any {
				t, current, token := all.Contexts[*name], "", cmp.Or(all.Contexts[*name].TokenFile, "-")
				if *name == all.Current {
					current = "*"
				}
				if t.Token != "" {
					token = "(set)"
				}
				return []any{current, *name, t.Addr, token, cmp.Or(t.CACert, "-")}
			})
	}),
	plain("context add", func(c request, _ *none) error {
		name := c.args[0]
		if !event.ValidName(name) {
			return usagef("a context's name must match %s, not %.64q", event.Names, name)
		}
		t := target{Addr: c.reach.addr, Token: c.reach.token}
		for _, file := range []struct{ to, from *string }{
			{&t.TokenFile, &c.reach.tokenFile}, {&t.CACert, &c.reach.caCert},
		} {
			if *file.from == "" {
				continue
			}
			path, err := filepath.Abs(*file.from)
			if err != nil {
				return err
			}
			*file.to = path
		}
		if t.Addr == "" {
			return usagef("--addr is needed: the address of a node, or of several")
		}
		if t.Token != "" && t.TokenFile != "" {
			return usagef("--token and --token-file exclude each other")
		}
		// Not by connect: the context that QLOGD_CONTEXT names may be this one.
		var opts []client.Option
		if t.CACert != "" {
			opts = append(opts, client.WithCACert(t.CACert))
		}
		if _, err := client.New(t.Addr, opts...); err != nil {
			return usagef("%w", err)
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
