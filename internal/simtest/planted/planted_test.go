// Package planted shows that the campaigns find something: mistakes are planted in
// the product, one at a time, and a campaign must fail.
package planted

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/script"
)

// campaigns are small ones: their environment, and what go test is given.
var campaigns = map[string]struct{ env, args string }{
	"model": {"", "-run ^(TestModel|TestReplicas|TestFold)$ ./fsm ./projections/store " +
		"-args -rapid.nofailfile"},
	"sim": {"SIM_SEEDS=40", "-run ^TestSeeds$ ./internal/simtest/sim"},
	"crashwalk": {"", "-run ^(Test.*CrashAnywhere|TestFailAnywhere|TestCrashAtEveryOperation)$ " +
		"./log ./raft ./raft/fetch ./server"},
	"flips": {"", "-run ^(TestEveryFlippedByte|TestFlippedByte|TestCutShort|TestAttacks)$ " +
		"./log ./raft/fetch ./replay"},
	"crash":    {"CRASH_KILLS=10" + underLoad, "-run ^TestCrash$ ./internal/simtest/cluster/crashtest"},
	"powercut": {"POWER_CUTS=5" + underLoad, "-run ^TestPowerCut$ ./internal/simtest/cluster/crashtest"},
	"story":    {"STORY_MESSAGES=1400", "-run ^TestDeadLetterStory$ ./internal/simtest/cluster"},
	"erasure":  {"", "-run ^TestErase$ ./internal/simtest/cluster"},
	"webhooks": {"WEBHOOKS=400", "-run ^TestWebhooks$ ./internal/simtest/cluster"},
}

// underLoad is the campaigns' load, which is larger than in make test.
const underLoad = " CRASH_LOAD=full"

// bug is a case of testdata/bugs.txt.
type bug struct {
	name, breaks, by, env, file string
	hunks                       [][2]string // what is there, and what is put in its place
}

func parse(t *testing.T, c script.Case) (b bug) {
	b = bug{name: c.Title, hunks: make([][2]string, 1)}
	for line := range strings.Lines(c.Lines) {
		h := &b.hunks[len(b.hunks)-1]
		text, rest := strings.TrimSuffix(line, "\n"), line[1:]
		switch word, arg, _ := strings.Cut(text, " "); {
		case text == "":
		case text == "...":
			b.hunks = append(b.hunks, [2]string{})
		case line[0] == '-':
			h[0] += rest
		case line[0] == '+':
			h[1] += rest
		case line[0] == ' ':
			h[0], h[1] = h[0]+rest, h[1]+rest
		case word == "breaks":
			b.breaks = arg
		case word == "by":
			b.by, b.env, _ = strings.Cut(arg, " ")
			b.env = cmp.Or(b.env, campaigns[b.by].env)
		case word == "in":
			b.file = arg
		default:
			t.Fatalf("%s: %q is not understood", b.name, text)
		}
	}
	return b
}

const root = "../../.."

// plant returns the file with the mistake in it.
func (b *bug) plant(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join(root, b.file))
	require.NoError(t, err)
	out := string(text)
	for _, h := range b.hunks {
		require.True(t, h[0] != h[1] && strings.Count(out, h[0]) == 1,
			"%s has changed, and the mistake with it must:\n%s", b.file, h[0])
		out = strings.Replace(out, h[0], h[1], 1)
	}
	return out
}

// find runs the campaign with the mistake. It returns what go test printed, and
// whether that is a finding.
func (b *bug) find(t *testing.T) (out string, found bool) {
	dir := t.TempDir()
	planted, overlay := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json")
	real, err := filepath.Abs(filepath.Join(root, b.file))
	require.NoError(t, err)
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{real: planted}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(planted, []byte(b.plant(t)), 0o600))
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	c := campaigns[b.by]
	args := append([]string{"test", "-count=1", "-vet=off", "-failfast", "-timeout=20m"},
		strings.Fields(c.args)...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	// Also for the program that a campaign builds.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	cmd.Env = append(append(cmd.Env, "TMPDIR="+dir), strings.Fields(b.env)...)
	text, err := cmd.CombinedOutput()
	out = string(text)
	require.False(t, strings.Contains(out, "[build failed]") ||
		strings.Contains(out, "build the program"), "%s", out)
	return out, err != nil
}

var failedSeed = regexp.MustCompile(`(?m)^ +--- FAIL: TestSeeds/all/\d+ `)

// TestPlanted plants each mistake and runs the campaign that it names, which must
// find it:
//
//	PLANTED=regexp  those alone; "." all. By default it is seen only that each still fits its file.
func TestPlanted(t *testing.T) {
	which := os.Getenv("PLANTED")
	ran, bugs := 0, script.Cases(t, "testdata/bugs.txt")
	begun := time.Now()
	for _, c := range bugs {
		b := parse(t, c)
		t.Run(b.name, func(t *testing.T) {
			_, known := campaigns[b.by]
			require.True(t, known && b.breaks != "", "no campaign %q, or no promise", b.by)
			b.plant(t)
			if which == "" || !regexp.MustCompile(which).MatchString(b.name) {
				return
			}
			ran++
			start := time.Now()
			out, found := b.find(t)
			assert.True(t, found, "the campaign %s does not find it:\n%s", b.by, out)
			by := strings.TrimSpace(b.by + " " + b.env)
			if n := len(failedSeed.FindAllString(out, -1)); n > 0 {
				by += fmt.Sprintf(", %d of them", n)
			}
			t.Logf("| %s | %s | %s | %.0f s |", b.name, b.breaks, by, time.Since(start).Seconds())
		})
	}
	if ran > 0 {
		t.Logf("figures: %d of %d mistakes planted, all found: %t, in %s", ran, len(bugs),
			!t.Failed(), time.Since(begun).Round(time.Second))
	}
}
