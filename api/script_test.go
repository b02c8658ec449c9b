package api

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/script"
)

// TestScripts runs the files of testdata/scripts. A script has cases, each on a node of its own:
// requests, one a line, with the status of the answer, and indented below what goes with them.
//
//	== the name of a case
//	let q /v1/queues/q
//	201 PUT $q {"ordering":"fifo"}
//		Idempotency-Key: k         a header of the request
//		| {"a":1}                  more of its body
//		from 10.0.0.1              the sender's address
//		signed                     GitHub's signature by the environment variable SECRET
//		signed -300                Stripe's, 300 seconds old
//		stats.depth = 2            a member of the answer as JSON; null: none
//		dead[].id = ["1"]          a member of each element of a list
//		@Allow = "GET"             a header of the answer
//		@X-Request-Id != a         another value
//		@Retry-After               a header that is there
//		detail ~ not exist         a part of a member, or of the whole answer: . ~ text
//		detail !~ exist            no part of it
//		$id = messages.0.id        $id is the value of a member from here on; . is all
//		repeats                    the answer is that of the same request before
//	die q an error                 leases a message of a queue and dead-letters it
//	acks q ["1", 2]                leases and acks all that there is, by their payloads
//	pass 2m                        waits, in simulated time
//	late 2m                        so it does, and what is due does not happen yet
//	limit 3                        produce creates queues, and there are at most so many
//	retention 1h                   history is kept for so long
//	erased                         all contents are erased
//	tokens admin | read a.*        needs tokens from here on: of these roles on these queues,
//		as read a.*                of which a request has one; $admin is the first
//	stale 3                        the next writes come too late for what they were checked against
//	fail writes no_leader unknown  what is proposed fails from here on, with an unknown outcome;
//	fail reads overloaded          so do linearizable reads, and changes of the cluster
//	drain                          the server is to end
//	unready text                   the node is not ready, for this reason
//	deleted 5                      the log is gone up to this index
//	entries                        counts the entries from here on
//	entries 0                      of which there were so many until here
//
// {{x*257}} is a text of 257 x; a request with {{a|b}} is made with a, and then with b: $it.
// So is a case whose name has them: $case.
func TestScripts(t *testing.T) {
	for _, c := range script.Cases(t, "testdata/scripts/*.txt") {
		for _, which := range alternatives(c.Title) {
			name := strings.TrimSuffix(filepath.Base(c.File), ".txt") + "/" + which[0]
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runScript(t, c.Lines, which[1]) })
			})
		}
	}
}

func runScript(t *testing.T, steps, which string) {
	time.Sleep(time.Until(noon)) // a bubble's clock begins in 2000
	h, m := onMachine(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
		}
	})
	m.s.deps.Push = pushes{}
	h.secrets = map[string]string{"SECRET": topSecret}
	s := &player{h, m, map[string]string{"$case": which}, map[string]answer{}, 0, nil}
	lines := strings.Split(steps, "\n")
	for i := 0; i < len(lines); i++ {
		first := i
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "\t") {
			i++
		}
		s.step(lines[first], lines[first+1:i+1])
	}
	for _, c := range h.commands {
		assert.False(t, bytes.Contains(event.EncodeCommand(c), []byte(topSecret)), "%+v", c)
	}
}

// alternatives are a text with each alternative in the place of {{a|b}}, and that alternative.
func alternatives(text string) (out [][2]string) {
	all := either.FindStringSubmatch(text)
	if all == nil {
		return [][2]string{{text}}
	}
	for one := range strings.SplitSeq(all[1], "|") {
		out = append(out, [2]string{strings.Replace(text, all[0], one, 1), one})
	}
	return out
}

type player struct {
	*harness
	m       *machine
	vars    map[string]string
	answers map[string]answer // by request
	entries uint64
	tokens  tokens
}

var (
	repeated = regexp.MustCompile(`\{\{(.+?)\*(\d+)\}\}`)
	either   = regexp.MustCompile(`\{\{([^{}]*\|[^{}]*)\}\}`)
	variable = regexp.MustCompile(`\$\w+`)
	header   = regexp.MustCompile(`^[A-Z][\w-]*: `)
)

const topSecret = "It's a Secret to Everybody"

func sign(secret, body string) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(body))
	return hex.EncodeToString(m.Sum(nil))
}

func (s *player) expand(text string) string {
	text = variable.ReplaceAllStringFunc(text, func(name string) string {
		if v, ok := s.vars[name]; ok {
			return v
		}
		return name
	})
	return repeat(text)
}

func repeat(text string) string {
	return repeated.ReplaceAllStringFunc(text, func(of string) string {
		m := repeated.FindStringSubmatch(of)
		n, _ := strconv.Atoi(m[2])
		return strings.Repeat(m[1], n)
	})
}

// step does one line, with the lines below it.
func (s *player) step(line string, below []string) {
	s.Helper()
	word, rest, _ := strings.Cut(s.expand(line), " ")
	name, arg, _ := strings.Cut(rest, " ")
	switch word {
	case "", "#":
	case "let":
		s.vars["$"+name] = arg
	case "die":
		s.die(name, arg)
	case "pass", "late", "retention":
		d, err := time.ParseDuration(name)
		require.NoError(s.T, err)
		switch word {
		case "pass":
			s.m.pass(d)
		case "late":
			s.m.late(d)
		default:
			s.s.opts.HistoryRetention = d
		}
	case "limit":
		n, err := strconv.Atoi(name)
		require.NoError(s.T, err)
		s.s.opts.MaxQueues, s.s.opts.AutoCreateQueues = n, true
	case "erased":
		s.log.erased = true
	case "tokens":
		if s.s.opts.Auth = nil; rest == "" {
			return
		}
		s.tokens, s.s.opts.Auth, _ = authFile(s.T, strings.Split(rest, " | ")...)
		s.vars["$"+name] = s.tokens[name]
	case "drain":
		s.s.Drain()
	case "unready":
		s.node.unready = []string{rest}
	case "deleted":
		index, err := strconv.ParseUint(name, 10, 64)
		require.NoError(s.T, err)
		s.log.deleted = index
	case "stale":
		n, err := strconv.Atoi(name)
		require.NoError(s.T, err)
		s.stale = n
	case "fail":
		code, outcome, _ := strings.Cut(arg, " ")
		var err error
		switch code {
		case "":
		case "timeout":
			err = context.DeadlineExceeded
		default:
			err = &event.Problem{Code: code, Index: -1, QueueDepth: 7,
				Unknown: outcome == "unknown"}
		}
		switch name {
		case "writes":
			s.err = err
		case "reads":
			s.barrier = err
		case "cluster":
			s.cluster.err = err
		}
	case "acks":
		s.equal(line, s.payloads(name), arg)
	case "entries":
		n := fmt.Sprint(s.m.proposals() - s.entries)
		require.False(s, rest != "" && n != rest, "%s: there are %s", line, n)
		s.entries = s.m.proposals()
	default:
		status, err := strconv.Atoi(word)
		require.NoError(s.T, err)
		for _, one := range alternatives(rest) {
			s.vars["$it"] = one[1]
			s.request(status, one[0], below)
		}
	}
}

func (s *player) request(status int, line string, below []string) {
	s.Helper()
	var headers, checks, signed []string
	from := "192.0.2.1"
	for _, l := range below {
		switch l = strings.TrimSpace(l); {
		case strings.HasPrefix(l, "| "):
			line += s.expand(l[2:])
		case header.MatchString(l):
			headers = append(headers, s.expand(l))
		case strings.HasPrefix(l, "as "):
			headers = append(headers, "Authorization: Bearer "+s.tokens[l[3:]])
		case strings.HasPrefix(l, "from "):
			from = l[5:]
		case strings.HasPrefix(l, "signed"):
			signed = strings.Fields(l)
		default:
			checks = append(checks, l)
		}
	}
	call := append(strings.SplitN(line, " ", 3), "", "")
	switch len(signed) {
	case 1:
		headers = append(headers, "X-Hub-Signature-256: sha256="+sign(topSecret, call[2]))
	case 2:
		age, err := strconv.ParseInt(signed[1], 10, 64)
		require.NoError(s.T, err)
		at := time.Now().Unix() + age
		headers = append(headers, fmt.Sprintf("Stripe-Signature: t=%d,v1=%s", at,
			sign(topSecret, fmt.Sprintf("%d.%s", at, call[2]))))
	}
	r := requestOf(s.Context(), call[0], call[1], call[2], headers...)
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(from), 40000).String()
	a := s.send(r)
	for _, secret := range []string{topSecret, sign(topSecret, call[2])} {
		assert.False(s.T, strings.Contains(a.Body.String(), secret), "%s: %s", line, a.Body)
	}
	require.Equal(s, a.Code, status, "%.300s: %s", line, a.Body)
	key := fmt.Sprint(line, headers)
	for _, c := range checks {
		where, want, equal := strings.Cut(c, " = ")
		part, has, contains := strings.Cut(c, " ~ ")
		other, not, unequal := strings.Cut(c, " != ")
		lacking, lacks, without := strings.Cut(c, " !~ ")
		switch {
		case c == "repeats":
			a.repeats(s.answers[key])
		case equal && where[0] == '$' && want == ".":
			s.vars[where] = a.Body.String()
		case equal && where[0] == '$':
			s.vars[where] = fmt.Sprint(a.get(want))
		case equal && where[0] == '@':
			s.equal(c, a.Header().Get(where[1:]), s.expand(want))
		case unequal && a.text(other) != s.expand(not):
		case c[0] == '@' && !strings.Contains(c, " ") && a.text(c) != "":
		case equal && strings.Contains(where, "[]."):
			list, member, _ := strings.Cut(where, "[].")
			s.equal(c, a.each(list, member), s.expand(want))
		case equal:
			s.equal(fmt.Sprint(c, " of ", a.Body), a.get(where), s.expand(want))
		case contains && strings.Contains(a.text(part), s.expand(has)):
		case without && !strings.Contains(a.text(lacking), s.expand(lacks)):
		default:
			s.Fatalf("%s: %s", c, a.Body)
		}
	}
	if _, ok := s.answers[key]; !ok {
		s.answers[key] = a
	}
}

// text returns a member that is a text, a header, or the whole answer.
func (a answer) text(path string) string {
	a.t.Helper()
	if path == "." {
		return a.Body.String()
	}
	if name, ok := strings.CutPrefix(path, "@"); ok {
		return a.Header().Get(name)
	}
	return a.str(path)
}

// equal fails unless two values have the same JSON.
func (s *player) equal(what string, got any, want string) {
	s.Helper()
	var a, b any
	text, err := json.Marshal(got)
	require.NoError(s.T, err)
	require.NoError(s.T, json.Unmarshal(text, &a))
	require.NoError(s.T, json.Unmarshal([]byte(want), &b))
	require.DeepEqual(s, a, b, "%s: %s", what, text)
}
