package api

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
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

var roleNames = map[string]role{"produce": roleProduce, "consume": roleConsume, "read": roleRead, "admin": roleAdmin}

func (r role) String() string {
	for name, v := range roleNames {
		if v == r {
			return name
		}
	}
	return "some"
}

// principal is who a token stands for.
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
	if p.roles&roleAdmin != 0 {
		return true
	}
	if p.roles&r == 0 {
		return false
	}
	if p.all {
		return true
	}
	for _, pattern := range p.queues {
		if ok, _ := path.Match(pattern, queue); ok { // checked when it was read
			return true
		}
	}
	return false
}

// mayAll reports whether the principal has a role on every queue there is or
// may be.
func (p *principal) mayAll(r role) bool {
	return p.roles&roleAdmin != 0 || p.roles&r != 0 && p.all
}

// Auth knows the tokens of an auth file. Of a token the file has no more than
// the SHA-256: whoever reads the file can't use it. That is enough (no salt, no
// slow hash) because tokens are 256 random bits and not chosen by people.
type Auth struct {
	path   string
	tokens atomic.Pointer[map[[sha256.Size]byte]*principal]
}

// LoadAuth reads an auth file. Errors name its line and field.
func LoadAuth(file string) (*Auth, error) {
	a := &Auth{path: file}
	if err := a.Reload(); err != nil {
		return nil, err
	}
	return a, nil
}

// Reload reads the file anew. A mistake in it leaves all as it was. Requests
// that wait (long polls, streams) are held against the new tokens before they
// are given anything more.
func (a *Auth) Reload() error {
	info, err := os.Stat(a.path)
	if err != nil {
		return fmt.Errorf("auth file: %w", err)
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("auth file %s can be written to by everybody (mode %04o): whoever does has all rights", a.path, info.Mode().Perm())
	}
	b, err := os.ReadFile(a.path)
	if err != nil {
		return fmt.Errorf("auth file: %w", err)
	}
	tokens, err := parseAuth(b)
	if err != nil {
		return fmt.Errorf("%s:%w", a.path, err)
	}
	a.tokens.Store(&tokens)
	return nil
}

// Tokens returns how many there are, expired ones included.
func (a *Auth) Tokens() int { return len(*a.tokens.Load()) }

// CheckAuth tells what is wrong with an auth file's text: "LINE: what".
func CheckAuth(text []byte) error {
	_, err := parseAuth(text)
	return err
}

// find returns whom a token stands for, nil nobody.
//
// It is looked up by its SHA-256. How long that takes depends on the hash of
// what was sent, which nobody can steer towards a hash in the file without
// finding preimages: so the time tells nothing, and the last word is a
// comparison in constant time.
func (a *Auth) find(sum [sha256.Size]byte) *principal {
	p := (*a.tokens.Load())[sum]
	if p == nil || subtle.ConstantTimeCompare(p.sum[:], sum[:]) != 1 {
		return nil
	}
	return p
}

// maxToken bounds what is hashed.
const maxToken = 512

// NewToken returns a new token and its SHA-256 in hex, which is all that an
// auth file knows of it.
func NewToken() (token, sum string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	token = "qlogd_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
	h := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(h[:])
}

// parseAuth reads a list of tokens. Errors begin with the line.
func parseAuth(b []byte) (map[[sha256.Size]byte]*principal, error) {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(b))
	err := dec.Decode(&doc)
	if err == nil {
		if err = dec.Decode(&second); err == nil {
			return nil, at(&second, "", "the file must be one list: what comes after --- would not count")
		}
	}
	if !errors.Is(err, io.EOF) {
		var line int
		msg := strings.TrimPrefix(err.Error(), "yaml: ")
		if n, _ := fmt.Sscanf(msg, "line %d:", &line); n == 1 {
			_, msg, _ = strings.Cut(msg, ": ")
		}
		return nil, fmt.Errorf("%d: %s", max(line, 1), msg)
	}
	out := map[[sha256.Size]byte]*principal{}
	const none = "there are no tokens: everybody would be refused"
	if len(doc.Content) == 0 {
		return nil, errors.New("1: " + none)
	}
	list := resolve(doc.Content[0])
	if list.Kind != yaml.SequenceNode {
		return nil, at(list, "", "the file must be a list of tokens: \"- name: …\"")
	}
	if len(list.Content) == 0 {
		return nil, at(list, "", none)
	}
	for i, n := range list.Content {
		p, err := parseToken(fmt.Sprintf("tokens[%d]", i), resolve(n))
		if err != nil {
			return nil, err
		}
		if out[p.sum] != nil {
			return nil, at(n, fmt.Sprintf("tokens[%d].sha256", i), "is the same as that of an entry above")
		}
		out[p.sum] = p
	}
	return out, nil
}

// resolve follows a YAML alias.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func at(n *yaml.Node, field, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if field != "" {
		what = field + " " + what
	}
	return fmt.Errorf("%d: %s", n.Line, what)
}

// parseToken reads one entry.
func parseToken(name string, n *yaml.Node) (*principal, error) {
	if n.Kind != yaml.MappingNode {
		return nil, at(n, name, "must have the fields name, sha256, roles, queues and, if it is to end, expires")
	}
	p := &principal{}
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], resolve(n.Content[i+1])
		field := name + "." + clip(key.Value, 40)
		if seen[key.Value] != nil {
			return nil, at(key, field, "is set twice")
		}
		seen[key.Value] = v
		var err error
		switch key.Value {
		case "name":
			if p.name = v.Value; v.Kind != yaml.ScalarNode || !event.ValidName(v.Value) {
				err = at(v, field, "must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
			}
		case "sha256":
			sum, derr := hex.DecodeString(v.Value)
			if derr != nil || len(sum) != sha256.Size {
				err = at(v, field, "must be the SHA-256 of the token, 64 hex digits; see qlogd token new")
			}
			copy(p.sum[:], sum)
		case "roles":
			err = p.parseRoles(field, v)
		case "queues":
			err = p.parseQueues(field, v)
		case "expires":
			if p.expires, err = time.Parse(time.RFC3339, v.Value); err != nil {
				err = at(v, field, "must be an RFC 3339 time such as 2027-01-31T00:00:00Z")
			}
		default:
			err = at(key, field, "is no field of a token: name, sha256, roles, queues, expires")
		}
		if err != nil {
			return nil, err
		}
	}
	for _, field := range []string{"name", "sha256", "roles"} {
		if seen[field] == nil {
			return nil, at(n, name+"."+field, "is missing")
		}
	}
	switch {
	case p.roles&roleAdmin != 0 && seen["queues"] != nil:
		return nil, at(seen["queues"], name+".queues", "does not go with the role admin, which has all queues")
	case p.roles&roleAdmin == 0 && len(p.queues) == 0:
		return nil, at(n, name+".queues", "is missing: name patterns such as 'orders.*', or '*' for all")
	}
	return p, nil
}

func (p *principal) parseRoles(field string, v *yaml.Node) error {
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		return at(v, field, "must be a list of admin, produce, consume, read")
	}
	for _, n := range v.Content {
		r, ok := roleNames[resolve(n).Value]
		if !ok {
			return at(n, field, "has %s, which is none of admin, produce, consume, read", echo(resolve(n).Value))
		}
		p.roles |= r
	}
	return nil
}

func (p *principal) parseQueues(field string, v *yaml.Node) error {
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		return at(v, field, "must be a list of patterns such as 'orders.*'")
	}
	for _, n := range v.Content {
		s := resolve(n)
		if _, err := path.Match(s.Value, ""); err != nil || s.Kind != yaml.ScalarNode || s.Value == "" {
			return at(n, field, "has %s, which is no pattern: * is any characters, ? one, [a-z] one of these", echo(s.Value))
		}
		if strings.Trim(s.Value, "*") == "" {
			p.all = true
		}
		p.queues = append(p.queues, s.Value)
	}
	return nil
}
