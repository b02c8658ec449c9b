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

func (a *app) tokenCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "token",
		Aliases: []string{"tokens"},
		Short:   "Make tokens, and check the file that a server knows them by",
		Example: `  qlogd token new --name shop --role produce --queues 'orders.*' --append auth.yaml
  qlogd token check auth.yaml`,
	}, a.tokenNewCmd(), a.tokenCheckCmd())
}

// tokenEntry is one entry of an auth file, in the order in which people read it.
type tokenEntry struct {
	Name    string   `yaml:"name" json:"name"`
	SHA256  string   `yaml:"sha256" json:"sha256"`
	Roles   []string `yaml:"roles,flow" json:"roles"`
	Queues  []string `yaml:"queues,flow,omitempty" json:"queues,omitempty"`
	Expires string   `yaml:"expires,omitempty" json:"expires,omitempty"`
}

func (a *app) tokenNewCmd() *cobra.Command {
	var e tokenEntry
	var file string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a token",
		Long: `Makes a token of 256 random bits and prints it: this is the only time that anybody
sees it. Below it is the entry for the server's auth file, which has no more than
the token's SHA-256; --append writes it into the file itself, and stdout has the
token alone. Servers read the file anew on SIGHUP; each node has its own copy.

Roles: produce (enqueue), consume (lease and settle), read (look, without any
effect), each on the queues whose names match; admin (everything, everywhere).
Several tokens of one name are one principal to the server: so a token is changed
without a gap.`,
		Example: `  qlogd token new --name ops --role admin
  qlogd token new --name shop --role produce --queues 'orders.*' --append auth.yaml > shop.token
  qlogd token new --name worker --role consume,read --queues 'orders.*,mail' --ttl 2160h`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < 0 || ttl > 0 && e.Expires != "" {
				return usagef("--ttl must be positive, and does not go with --expires")
			}
			if ttl > 0 {
				e.Expires = time.Now().Add(ttl).UTC().Format(time.RFC3339)
			}
			var token string
			token, e.SHA256 = api.NewToken()
			entry, err := yaml.Marshal([]tokenEntry{e})
			if err != nil {
				return err
			}
			if err := api.CheckAuth(entry); err != nil {
				// The mistake is in what was typed; a line of the entry says nothing.
				_, what, _ := strings.Cut(err.Error(), ": ")
				return usagef("%s", strings.NewReplacer("tokens[0].roles", "--role", "tokens[0].", "--").Replace(what))
			}
			if file != "" {
				if err := appendToken(file, entry); err != nil {
					return err
				}
			}
			switch {
			case a.output == "json":
				return a.json(struct {
					Token string `json:"token"`
					tokenEntry
				}{token, e})
			case file != "":
				fmt.Fprintf(a.stderr, "%s appended to %s; the token is shown this once:\n", e.Name, file)
				fmt.Fprintln(a.stdout, token)
			default:
				fmt.Fprintf(a.stdout, "%s\n\n%s", token, entry)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&e.Name, "name", "", "whose it is; events carry it as their actor")
	f.StringSliceVar(&e.Roles, "role", nil, "admin, produce, consume or read; several: produce,read")
	f.StringSliceVar(&e.Queues, "queues", nil, "patterns of queue names: * any characters, ? one, [a-z] one of these")
	f.StringVar(&e.Expires, "expires", "", "when it ends, an RFC 3339 time (default never)")
	f.DurationVar(&ttl, "ttl", 0, "how long it counts, in place of --expires")
	f.StringVar(&file, "append", "", "append the entry to this auth file; it is made if it is missing")
	_ = cmd.MarkFlagRequired("name")
	_ = cmd.MarkFlagRequired("role")
	a.outputFlag(cmd)
	return cmd
}

// appendToken appends an entry to an auth file, all or nothing: a server that
// reads it meanwhile sees the old file or the new one. A file with a mistake is
// left as it is.
func appendToken(file string, entry []byte) error {
	mode := fs.FileMode(0o600)
	old, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("auth file: %w", err)
	default:
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("auth file: %w", err)
		}
		mode = info.Mode().Perm()
		if file, err = filepath.EvalSymlinks(file); err != nil { // the file is replaced, not the link
			return fmt.Errorf("auth file: %w", err)
		}
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	text := append(old, entry...)
	if err := api.CheckAuth(text); err != nil {
		return fmt.Errorf("%s is left as it is: with the new entry it would be wrong: line %w", file, err)
	}
	return replaceFile(file, text, mode)
}

// replaceFile gives a file new contents in one step, also if the machine dies in
// the middle of it.
func replaceFile(file string, text []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("auth file: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("auth file: %w", errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return err
	}
	return f.Close()
}

func (a *app) tokenCheckCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "check FILE",
		Short:   "Check an auth file without a server",
		Long:    "Reads an auth file as a server does, and tells the first thing that is wrong, with its line and field (exit code 1).",
		Example: "  qlogd token check auth.yaml",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, argv []string) error {
			auth, err := api.LoadAuth(argv[0])
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(map[string]int{"tokens": auth.Tokens()})
			}
			fmt.Fprintf(a.stdout, "%s: %s\n", argv[0], plural(auth.Tokens(), "token", "tokens"))
			return nil
		},
	}
	a.outputFlag(cmd)
	return cmd
}
