package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/event"
)

// role is what a token may do; roles are or'ed.
type role uint8

const (
	roleProduce role = 1 << iota // enqueue
	roleConsume                  // lease and settle
	roleRead                     // look, without any effect
	roleAdmin                    // all of these on all queues, and everything else
)

var roleNames = map[string]role{
	"produce": roleProduce, "consume": roleConsume, "read": roleRead, "admin": roleAdmin,
}

func (r role) String() string {
	for name, v := range roleNames {
		if v == r {
			return name
		}
	}
	return "some"
}

// principal is the owner of a token.
type principal struct {
	name    string // the actor of events; tokens of one name are one principal
	sum     [sha256.Size]byte
	roles   role
	queues  []string // patterns
	all     bool     // they match every queue
	expires time.Time
}

// may reports whether the principal has a role on a queue.
func (p *principal) may(r role, queue string) bool {
	matches := func(pattern string) bool {
		ok, _ := path.Match(pattern, queue) // checked when it was read
		return ok
	}
	return p.mayAll(r) || p.roles&r != 0 && slices.ContainsFunc(p.queues, matches)
}

// mayAll reports whether the principal has a role on every queue there is or may be.
func (p *principal) mayAll(r role) bool {
	return p.roles&roleAdmin != 0 || p.roles&r != 0 && p.all
}

// expired reports whether the token has expired.
func (p *principal) expired() bool { return !p.expires.IsZero() && !time.Now().Before(p.expires) }

// Auth holds the tokens of an auth file. The file has only their SHA-256, so a reader of
// the file cannot use them. That is enough (no salt, no slow hash) because tokens are
// 256 random bits and not chosen by people.
type Auth struct {
	path   string
	tokens atomic.Pointer[map[[sha256.Size]byte]*principal]
}

// LoadAuth reads an auth file. Errors name its line and field.
func LoadAuth(file string) (*Auth, error) {
	a := &Auth{path: file}
	return a, a.Reload()
}

// Reload reads the file again. After an error the old tokens stay in force. Waiting requests (long
// polls, streams) are checked against the new tokens before they get anything more.
func (a *Auth) Reload() error {
	info, err := os.Stat(a.path)
	if err == nil && !info.Mode().IsRegular() { // to read a pipe would wait for its other end
		return fmt.Errorf("auth file %s must be a regular file", a.path)
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(a.path)
	}
	if err != nil {
		return fmt.Errorf("auth file: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o002 != 0 {
		return fmt.Errorf("auth file %s can be written to by everybody (mode %04o)", a.path, mode)
	}
	tokens, err := parseAuth(b)
	if err != nil {
		return fmt.Errorf("%s:%w", a.path, err)
	}
	a.tokens.Store(&tokens)
	return nil
}

// Tokens returns the number of tokens, including expired ones.
func (a *Auth) Tokens() int { return len(*a.tokens.Load()) }

// CheckAuth returns the first mistake in an auth file's text, as "LINE: text".
func CheckAuth(text []byte) error {
	_, err := parseAuth(text)
	return err
}

// Name returns the name of the token with this SHA-256, "" if it is unknown or has expired.
func (a *Auth) Name(sum [sha256.Size]byte) string {
	if p := a.find(sum); p != nil && !p.expired() {
		return p.name
	}
	return ""
}

// Sums returns the SHA-256 of the tokens of a name, without the expired ones.
func (a *Auth) Sums(name string) (sums [][sha256.Size]byte) {
	for sum, p := range *a.tokens.Load() {
		if p.name == name && !p.expired() {
			sums = append(sums, sum)
		}
	}
	return sums
}

// May reports whether a token has a role on a queue; "" means all queues. No token has an
// unknown role.
func (a *Auth) May(sum [sha256.Size]byte, role, queue string) bool {
	p, r := a.find(sum), roleNames[role]
	return p != nil && !p.expired() && r != 0 && (p.mayAll(r) || queue != "" && p.may(r, queue))
}

// tokenKey is the key of a token's SHA-256 in a context.
type tokenKey struct{}

// As returns a context that authenticates a request as a token, in place of an Authorization
// header. It is for handlers in this process, such as the console; no request from a socket has it.
func (a *Auth) As(ctx context.Context, sum [sha256.Size]byte) context.Context {
	return context.WithValue(ctx, tokenKey{}, sum)
}

// find returns the principal of the token with this SHA-256, nil if there is none. The lookup need
// not run in constant time: it depends only on the hash of the token sent, which an attacker cannot
// steer towards a hash in the file without finding preimages.
func (a *Auth) find(sum [sha256.Size]byte) *principal { return (*a.tokens.Load())[sum] }

// TokenEntry is an entry of an auth file. Its fields are in the order in which they are written.
type TokenEntry struct {
	Name    string   `yaml:"name" json:"name"`
	SHA256  string   `yaml:"sha256" json:"sha256"`
	Roles   []string `yaml:"roles,flow" json:"roles"`
	Queues  []string `yaml:"queues,flow,omitempty" json:"queues,omitempty"`
	Expires string   `yaml:"expires,omitempty" json:"expires,omitempty"`
}

// NewToken returns a new random token and stores its SHA-256 in the entry. An error is about the
// returned field of the entry.
func (e *TokenEntry) NewToken() (token, field string, err error) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:])
	token = "qlogd_" + strings.ToLower(text)
	h := sha256.Sum256([]byte(token))
	e.SHA256 = hex.EncodeToString(h[:])
	_, field, err = e.principal()
	return token, field, err
}

// parseAuth parses a list of tokens. Errors begin with the line number.
func parseAuth(b []byte) (map[[sha256.Size]byte]*principal, error) {
	var entries []TokenEntry
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	err := dec.Decode(&entries)
	if err == nil {
		var second yaml.Node
		if err = dec.Decode(&second); err == nil {
			return nil, fmt.Errorf("%d: the file must be one list: what comes after --- would not "+
				"count", second.Line)
		}
	}
	if !errors.Is(err, io.EOF) {
		names := strings.NewReplacer("into api.TokenEntry", "into an entry",
			"into []api.TokenEntry", "into a list of entries (- name: …)")
		return nil, errors.New(names.Replace(YAMLError(err).Error()))
	}
	if len(entries) == 0 {
		return nil, errors.New("1: there are no tokens: everybody would be refused")
	}
	var nodes []yaml.Node // the entries again, for their lines
	if err := yaml.Unmarshal(b, &nodes); err != nil {
		return nil, YAMLError(err)
	}
	out := map[[sha256.Size]byte]*principal{}
	for i := range entries {
		p, field, err := entries[i].principal()
		if err == nil && out[p.sum] != nil {
			field, err = "sha256", errors.New("is the same as that of an entry above")
		}
		if err != nil {
			return nil, fmt.Errorf("%d: tokens[%d].%s %w", lineOf(&nodes[i], field), i, field, err)
		}
		out[p.sum] = p
	}
	return out, nil
}

// lineOf returns the line of a field of an entry, or the entry's own line if the field is missing.
func lineOf(entry *yaml.Node, field string) int {
	for i := 0; i+1 < len(entry.Content); i += 2 {
		if entry.Content[i].Value == field {
			return entry.Content[i].Line
		}
	}
	return entry.Line
}

// YAMLError begins an error of the yaml package with its line, "LINE: text".
func YAMLError(err error) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if all, ok := errors.AsType[*yaml.TypeError](err); ok {
		msg = all.Errors[0]
	}
	line := 1
	if n, _ := fmt.Sscanf(msg, "line %d:", &line); n == 1 {
		_, msg, _ = strings.Cut(msg, ": ")
	}
	if field, _, ok := strings.Cut(msg, " not found in type "); ok {
		msg = "unknown " + field // "field NAME not found" reads as if it were missing
	}
	return fmt.Errorf("%d: %s", line, msg)
}

// principal validates an entry. An error is about the returned field.
func (e *TokenEntry) principal() (p *principal, field string, err error) {
	p = &principal{name: e.Name, queues: e.Queues}
	if !event.ValidName(p.name) {
		return nil, "name", errors.New("must match " + event.Names)
	}
	sum, err := hex.DecodeString(e.SHA256)
	if err != nil || len(sum) != sha256.Size {
		return nil, "sha256", errors.New("must be the SHA-256 of the token, 64 hex digits; " +
			"see qlogd token new")
	}
	copy(p.sum[:], sum)
	if len(e.Roles) == 0 {
		return nil, "roles", errors.New("must be a list of admin, produce, consume, read")
	}
	for _, name := range e.Roles {
		if roleNames[name] == 0 {
			return nil, "roles", fmt.Errorf("has %s, which is none of admin, produce, consume, "+
				"read", echo(name))
		}
		p.roles |= roleNames[name]
	}
	for _, pattern := range p.queues {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return nil, "queues", fmt.Errorf("has %s, which is no pattern: * is any characters, "+
				"? one, [a-z] one of these", echo(pattern))
		}
		p.all = p.all || strings.Trim(pattern, "*") == ""
	}
	if e.Expires != "" {
		if p.expires, err = time.Parse(time.RFC3339, e.Expires); err != nil {
			return nil, "expires", errors.New("must be an RFC 3339 time such as " +
				"2027-01-31T00:00:00Z")
		}
	}
	switch admin := p.roles&roleAdmin != 0; {
	case admin && len(p.queues) > 0:
		return nil, "queues", errors.New("does not go with the role admin, which has all queues")
	case !admin && len(p.queues) == 0:
		return nil, "queues", errors.New("is missing: name patterns such as 'orders.*', or '*' " +
			"for all")
	}
	return p, "", nil
}

// access is a route's access rule if there is an auth file: the role that the token needs, and on
// which queues.
type access struct {
	role role
	on   where
}

// where is on which queues a token needs the role.
type where uint8

const (
	nobody        where = iota // no rule: a route that was forgotten is closed
	open                       // everybody, without a token
	authenticated              // any token; the handler checks the parts of the request
	anyQueue                   // the role on any queue; the handler checks or filters queues
	pathQueue                  // the role on the queue in the path
	allQueues                  // the role on all queues
)

// refused checks the request's token against its route's rule and sets q.who. It runs before the
// state is read, so the answer does not reveal whether a queue exists.
func (q *request) refused(rule access) error {
	auth := q.s.opts.Auth
	if auth == nil || rule.on == open {
		return nil
	}
	if err := q.identify(); err != nil {
		return err
	}
	if rule.on == authenticated ||
		rule.on == anyQueue && q.who.roles&(rule.role|roleAdmin) != 0 ||
		rule.on == pathQueue && q.who.may(rule.role, q.PathValue("queue")) ||
		rule.on == allQueues && q.who.mayAll(rule.role) {
		return nil
	}
	return q.forbidden(rule.role)
}

// identify sets q.who from the token. It is called again after a wait, because tokens expire.
func (q *request) identify() error {
	sum, inProcess := q.Context().Value(tokenKey{}).([sha256.Size]byte)
	if !inProcess {
		token, err := q.bearer()
		if err != nil {
			return err
		}
		sum = sha256.Sum256([]byte(token))
	}
	p := q.s.opts.Auth.find(sum)
	switch {
	case p == nil:
		return q.unauthenticated("invalid_token", "the token is not known here, or was revoked")
	case p.expired():
		return q.unauthenticated("invalid_token", "the token has expired")
	}
	q.who = p
	return nil
}

// bearer returns the token of the Authorization header.
func (q *request) bearer() (string, error) {
	h := q.Header["Authorization"]
	if len(h) == 0 {
		return "", q.unauthenticated("", "this server requires a token: Authorization: Bearer TOKEN")
	}
	scheme, token, _ := strings.Cut(h[0], " ")
	if len(h) > 1 || !strings.EqualFold(scheme, "Bearer") || !visible(token, 512) {
		return "", q.unauthenticated("invalid_request",
			"Authorization must be one header: Bearer TOKEN")
	}
	return token, nil
}

func (q *request) unauthenticated(why, detail string) error {
	if why != "" {
		why = ` error="` + why + `"`
	}
	if q.status == 0 {
		q.w.Header().Set("WWW-Authenticate", "Bearer"+why)
	}
	return event.Problemf(codeUnauthenticated, "Authorization", "%s", detail)
}

func (q *request) forbidden(r role) error {
	return event.Problemf(codeForbidden, "Authorization",
		"the token of %s lacks the role %s that this needs", echo(q.who.name), r)
}

// may returns an error unless the token has a role on a queue.
func (q *request) may(r role, queue string) error {
	if q.who != nil && !q.who.may(r, queue) {
		return q.forbidden(r)
	}
	return nil
}

// sees reports whether the token may read a queue. "" is no queue: only a token that may read all
// queues sees it.
func (q *request) sees(queue string) bool { return q.who == nil || q.who.may(roleRead, queue) }

// seesEvent reports whether the token may read an event: one of its queues', or a move into one.
func (q *request) seesEvent(e *event.Event) bool { return q.sees(e.Queue) || q.sees(e.ToQueue) }

// maySettle returns an error unless the token may settle all these leases.
func (q *request) maySettle(items []event.SettleItem) error {
	for _, item := range items {
		switch ok, err := q.mayEnd(item.Lease); {
		case err != nil:
			return err
		case !ok:
			return event.Problemf(codeForbidden, "Authorization", "the token of %s may not settle "+
				"lease %s, or it has ended and the log no longer has its beginning (POST "+
				"/v1/queues/{queue}/ack and the like do not need it)", echo(q.who.name), item.Lease)
		}
	}
	return nil
}

// settleable returns the items, without the lease id in those that the token may not settle. Such
// items are answered as lost, as unknown leases are, so the answer does not reveal which exist.
func (q *request) settleable(items []event.SettleItem) ([]event.SettleItem, error) {
	out, copied := items, false
	for i := range items {
		ok, err := q.mayEnd(items[i].Lease)
		if err != nil {
			return nil, err
		}
		if !ok && !copied {
			out, copied = slices.Clone(items), true
		}
		if !ok {
			out[i] = event.SettleItem{Op: items[i].Op}
		}
	}
	return out, nil
}

// mayEnd reports whether the token may consume from the queue of a lease; false if the lease is
// unknown. Checking before the proposal is no race: a lease belongs for ever to the queue that its
// event in the log names, and a message that moves to another queue has ended its lease.
func (q *request) mayEnd(lease event.ID) (bool, error) {
	if q.who == nil || q.who.mayAll(roleConsume) {
		return true, nil
	}
	leased, err := q.leasedEvent(lease)
	if err != nil {
		return false, err
	}
	m, current := q.s.deps.State.ByLease(lease) // also where retention has deleted its event
	return leased != nil && q.who.may(roleConsume, leased.Queue) ||
		current && q.who.may(roleConsume, m.Queue), nil
}

// leasedEvent returns the event that created a lease, nil if the log does not have it (any more).
func (q *request) leasedEvent(lease event.ID) (*event.Event, error) {
	log, ref := q.s.deps.Log, event.RefOf(lease)
	if ref.Index > log.Head() && !q.caughtUp { // this node may be behind
		if err := q.s.barrier(q.Context()); err != nil {
			return nil, err
		}
		q.caughtUp = true // once is enough for all leases of the request
	}
	if ref.Index > log.Head() {
		return nil, nil
	}
	switch e, err := log.Event(ref); {
	case gone(err), notFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case e.ID != lease || e.Type != event.Leased:
		return nil, nil
	default:
		return e, nil
	}
}
