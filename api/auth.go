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
