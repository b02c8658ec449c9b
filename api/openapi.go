package api

import (
	_ "embed"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"
)

//go:embed openapi.yaml
var openAPIYAML []byte

//go:embed docs.html
var docsPage []byte

// openAPI returns the API's description as JSON, with the program's version.
func openAPI(version string) []byte {
	var doc map[string]any
	if err := yaml.Unmarshal(openAPIYAML, &doc); err != nil {
		panic(fmt.Sprintf("api: openapi.yaml: %v", err)) // embedded, and tested
	}
	doc["info"].(map[string]any)["version"] = version
	b, err := json.Marshal(doc, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("api: openapi.yaml: %v", err))
	}
	return b
}

func (s *Server) serveOpenAPI(q *request) error {
	q.send(http.StatusOK, typeJSON, s.openapi())
	return nil
}

// serveDocs answers with a page that reads /openapi.json; it needs nothing from
// elsewhere.
func (s *Server) serveDocs(q *request) error {
	q.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'")
	q.send(http.StatusOK, "text/html; charset=utf-8", docsPage)
	return nil
}
