package arch

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// How long a page may be.
const (
	readmeLines = 120
	pageLines   = 300
)

// TestLinks: every relative link of a Markdown page leads to a file and, with an anchor, to a
// heading of it; so does what other files say of docs/*.md. Every page of docs/ is reachable from
// docs/README.md, and none is too long to be read.
func TestLinks(t *testing.T) {
	pages := map[string]page{}
	cites := map[string][]string{} // pages of docs/ that other files name
	eachFile(t, texts.MatchString, func(name, text string) {
		if strings.HasSuffix(name, ".md") {
			pages[name] = parse(text)
		} else {
			cites[name] = cited.FindAllString(text, -1)
		}
	})

	check := func(from, dir, target string) (to string) {
		file, anchor, _ := strings.Cut(target, "#")
		if to = from; file != "" {
			to = path.Join(dir, file)
		}
		_, err := os.Stat(filepath.Join("../..", to))
		p, isPage := pages[to]
		switch {
		case err != nil:
			t.Errorf("%s links to %s: there is no %s", from, target, to)
		case anchor != "" && !isPage:
			t.Errorf("%s links to %s: %s has no headings", from, target, to)
		case anchor != "" && !p.anchors[anchor]:
			t.Errorf("%s links to %s: %s has no such heading", from, target, to)
		}
		return to
	}
	linked := map[string][]string{}
	for name, p := range pages {
		for _, target := range p.links {
			linked[name] = append(linked[name], check(name, path.Dir(name), target))
		}
		limit := pageLines
		if name == "README.md" {
			limit = readmeLines
		}
		inGuide := name == "README.md" || strings.HasPrefix(name, "docs/")
		if inGuide && p.lines > limit {
			t.Errorf("%s has %d lines, more than %d", name, p.lines, limit)
		}
	}
	for name, targets := range cites {
		for _, target := range targets {
			check(name, ".", target)
		}
	}

	reached := map[string]bool{}
	var reach func(name string)
	reach = func(name string) {
		if !reached[name] {
			reached[name] = true
			for _, to := range linked[name] {
				if strings.HasPrefix(to, "docs/") {
					reach(to)
				}
			}
		}
	}
	reach("docs/README.md")
	for name := range pages {
		if strings.HasPrefix(name, "docs/") && !reached[name] {
			t.Errorf("no link leads from docs/README.md to %s", name)
		}
	}
}

var (
	texts   = regexp.MustCompile(`\.(md|go|ts|json|ya?ml|tpl|txt|html|service)$|(^|/)(Makefile|Dockerfile)$`)
	cited   = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md(#[a-z0-9-]+)?`)
	heading = regexp.MustCompile(`^#+ (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)
	inline  = regexp.MustCompile("`[^`]*`")
)

// page is a Markdown page, as far as links go.
type page struct {
	anchors map[string]bool
	links   []string // without those to other sites
	lines   int
}

func parse(text string) page {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	p := page{anchors: map[string]bool{}, lines: len(lines)}
	fenced := false
	for _, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			a, n := anchor(m[1]), 0
			for unique := a; ; unique = fmt.Sprintf("%s-%d", a, n) {
				if n++; !p.anchors[unique] {
					p.anchors[unique] = true
					break
				}
			}
		}
		for _, m := range link.FindAllStringSubmatch(inline.ReplaceAllString(line, ""), -1) {
			if target := m[1] + m[2]; !strings.Contains(target, ":") {
				p.links = append(p.links, target)
			}
		}
	}
	return p
}

// anchor returns the anchor that GitHub gives a heading.
func anchor(text string) string {
	text = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}
