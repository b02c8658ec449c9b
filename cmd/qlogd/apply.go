package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) applyCmd() *cobra.Command {
	var files []string
	var dry bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE...",
		Short: "Make queues and webhooks be as files say",
		Long: `Reads queues and webhooks from YAML files and puts them, all or none, in any
order. What a file leaves out of a queue has its default; queues and webhooks that
no file names stay as they are. All that is wrong is told, with its line.`,
		Example: `  qlogd apply -f qlogd.yaml
  qlogd apply -f queues.yaml -f webhooks.yaml --dry-run
  qlogd export definitions | qlogd apply --addr http://other:7070 -f -`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usagef("apply needs a file: -f FILE, or -f - for stdin")
			}
			var d definitions
			for _, name := range files {
				b, err := a.readInput(name)
				if err != nil {
					return err
				}
				if err := d.read(name, b); err != nil {
					return usagef("%w", err)
				}
			}
			req, err := d.request()
			if err != nil {
				return usagef("%w", err)
			}
			return a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
				changes, err := c.Define(ctx, req, dry)
				if err != nil {
					return d.refused(err)
				}
				return a.changes(changes, dry)
			})(cmd, nil)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "a YAML or JSON file with queues and webhooks; - is stdin; may be given several times")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show what would change, and change nothing")
	a.remoteFlags(cmd)
	return cmd
}

// refused tells all that the server found wrong.
func (d *definitions) refused(err error) error {
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	wrong := e.Problem.Errors
	if len(wrong) == 0 && elementRE.MatchString(e.Problem.Field) {
		wrong = []wire.Wrong{{Field: e.Problem.Field, Detail: e.Problem.Detail}}
	}
	if len(wrong) == 0 {
		return err
	}
	lines := make([]string, len(wrong))
	for i, w := range wrong {
		lines[i] = d.tell(w)
	}
	code := exitFailed
	if errors.Is(err, client.ErrInvalidArgument) {
		code = exitUsage
	}
	return &exitError{code, errors.New("nothing was changed:\n" + strings.Join(lines, "\n"))}
}

// changes prints what changed, or would.
func (a *app) changes(changes []wire.DefinitionChange, dry bool) error {
	counts := map[string]int{}
	var rows [][]any
	for _, c := range changes {
		counts[c.Action]++
		if a.output == "json" {
			if err := a.wire(c); err != nil {
				return err
			}
			continue
		}
		if len(c.Diff) == 0 {
			rows = append(rows, []any{c.Action, c.Kind, c.Name, "-", "-", "-"})
		}
		for _, d := range c.Diff {
			rows = append(rows, []any{c.Action, c.Kind, c.Name, d.Path, shown(d.Before), shown(d.After)})
		}
	}
	if a.output != "json" {
		if err := a.table([]string{"action", "kind", "name", "field", "before", "after"}, rows); err != nil {
			return err
		}
	}
	words := [...]string{"created", "updated", "unchanged"}
	if dry {
		words = [...]string{"to create", "to update", "unchanged"}
	}
	fmt.Fprintf(a.stderr, "%d %s, %d %s, %d %s\n", counts[wire.ActionCreate], words[0], counts[wire.ActionUpdate], words[1], counts[wire.ActionUnchanged], words[2])
	return nil
}

// shown is a field's value in a table.
func shown(v jsontext.Value) string {
	if v.Kind() == 'n' || len(v) == 0 {
		return "-"
	}
	return short(string(v), 80)
}
