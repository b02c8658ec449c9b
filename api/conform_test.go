package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/webhook"
)

// document is the OpenAPI document. kin-openapi does not know that, as OpenAPI 3.0.3 has it, a
// schema without a type allows null.
var document = sync.OnceValues(func() (*openapi3.T, error) {
	var v any
	if err := json.Unmarshal(openAPI("test"), &v); err != nil {
		return nil, err
	}
	eachProperty(v, func(_ string, p map[string]any) {
		if _, described := p["description"]; len(p) == 0 || len(p) == 1 && described {
			p["nullable"] = true
		}
	})
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	doc.Servers = nil // the router would compare /, relative to the document, with whole URLs
	return doc, nil
})

var router = sync.OnceValues(func() (routers.Router, error) {
	doc, err := document()
	if err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc)
})

// eachProperty calls fn with each property of each schema of a document.
func eachProperty(v any, fn func(name string, p map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			eachProperty(e, fn)
		}
	case map[string]any:
		for _, e := range v {
			eachProperty(e, fn)
		}
		properties, _ := v["properties"].(map[string]any)
		for name, p := range properties {
			fn(name, p.(map[string]any))
		}
	}
}

// The document says of each route what its rule says.
func TestDocumentTellsRoles(t *testing.T) {
	doc, err := document()
	require.NoError(t, err)
	h := setup(t)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			rule, ok := h.s.rules[method+" "+path]
			if !ok {
				t.Errorf("%s %s is no route", method, path)
				continue
			}
			want := rule.role.String()
			switch rule.on {
			case open:
				want = "none"
			case authenticated:
				want = "any"
			}
			if free := op.Security != nil && len(*op.Security) == 0; free != (want == "none") {
				t.Errorf("%s %s: the document does not say whether it needs a token", method, path)
			}
			if got := op.Extensions["x-qlogd-role"]; got != want {
				t.Errorf("%s %s: the document says %v, the rule %s", method, path, got, want)
			}
		}
	}
	for pattern := range h.s.rules {
		method, path, _ := strings.Cut(pattern, " ")
		if path != "" && (doc.Paths.Value(path) == nil || doc.Paths.Value(path).GetOperation(method) == nil) {
			t.Errorf("%s is not in the document", pattern)
		}
	}
}

// Generators take the first media type of a body: it is JSON wherever there is JSON.
func TestDocumentPutsJSONFirst(t *testing.T) {
	var doc yaml.Node
	require.NoError(t, yaml.Unmarshal(openAPI("test"), &doc))
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		for i, e := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 && i > 0 && e.Value == typeJSON {
				t.Errorf("line %d: %s comes before %s", e.Line, n.Content[0].Value, typeJSON)
			}
			walk(e)
		}
	}
	walk(&doc)
}

// The bodies that a call answers with under one status have one schema, whatever their media types:
// openapi-fetch offers only what all of them have.
func TestDocumentAnswersWithOneSchema(t *testing.T) {
	doc, err := document()
	require.NoError(t, err)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, r := range op.Responses.Map() {
				schemas := map[string]string{}
				for media, body := range r.Value.Content {
					b, err := json.Marshal(body.Schema)
					require.NoError(t, err)
					schemas[string(b)] += " " + media
				}
				assert.True(t, len(schemas) < 2, "%s %s: %s: %v", method, path, status, schemas)
			}
		}
	}
}

// Generators make a property that has a default required, in requests, too: the defaults of bodies
// are in words.
func TestDocumentBodiesHaveNoDefaults(t *testing.T) {
	var doc any
	require.NoError(t, json.Unmarshal(openAPI("test"), &doc))
	eachProperty(doc, func(name string, p map[string]any) {
		_, has := p["default"]
		assert.False(t, has, "property %s has a default", name)
	})
}

var validated sync.Map

// conformed reports whether the same request was validated before: to do it again shows nothing.
func conformed(r *http.Request, body []byte) bool {
	text := fmt.Append(nil, r.Method, r.URL, r.Header, string(body))
	_, again := validated.LoadOrStore(sha256.Sum256(text), true)
	return again
}

// conform holds a request that was taken, and every answer, against the
// OpenAPI document.
func conform(t *testing.T, r *http.Request) func(*httptest.ResponseRecorder) {
	t.Helper()
	router, err := router()
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	r.Body = io.NopCloser(bytes.NewReader(body))
	probe := r.Clone(context.Background())
	if r.Method == http.MethodHead {
		probe.Method = http.MethodGet
	}
	return func(w *httptest.ResponseRecorder) {
		t.Helper()
		route, params, err := router.FindRoute(probe)
		if err != nil {
			assert.True(t, w.Code >= 400, "%s %s is not in the document: %v", r.Method, r.URL, err)
			return
		}
		in := &openapi3filter.RequestValidationInput{Request: probe, PathParams: params, Route: route}
		ct := probe.Header.Get("Content-Type")
		if ct == "" && len(body) > 0 {
			ct = typeJSON
			probe.Header.Set("Content-Type", ct)
		}
		// The document can't say that ce-NAME headers make any body a payload.
		raw := ct != typeJSON && ct != webhook.CloudEventType && ct != webhook.CloudBatchType || webhook.IsCloudEvent(r.Header)
		in.Options = &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeRequestBody: raw, ExcludeRequestQueryParams: raw && len(body) > 0, ExcludeResponseBody: r.Method == http.MethodHead}
		if w.Code < 300 && !conformed(probe, body) {
			probe.Body = io.NopCloser(bytes.NewReader(body))
			assert.NoError(t, openapi3filter.ValidateRequest(context.Background(), in),
				"%s %s was taken, but", r.Method, r.URL)
		}
		out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: w.Code, Header: w.Header(), Options: in.Options}
		switch media, _, _ := bytes.Cut([]byte(w.Header().Get("Content-Type")), []byte(";")); string(media) {
		case typeJSON, "application/problem+json":
			out.SetBodyBytes(w.Body.Bytes())
		case webhook.CloudEventType:
			conformEvents(t, "["+w.Body.String()+"]")
			in.Options.ExcludeResponseBody = true
		case webhook.CloudBatchType:
			conformEvents(t, w.Body.String())
			in.Options.ExcludeResponseBody = true
		default:
			in.Options.ExcludeResponseBody = true
		}
		assert.NoError(t, openapi3filter.ValidateResponse(context.Background(), out),
			"%s %s: answer %d %s", r.Method, r.URL, w.Code, w.Body)
	}
}

// conformEvents holds CloudEvents against their schema. The document has them as an answer in words
// alone, see TestDocumentAnswersWithOneSchema.
func conformEvents(t *testing.T, list string) {
	t.Helper()
	doc, err := document()
	require.NoError(t, err)
	var events []any
	require.NoError(t, json.Unmarshal([]byte(list), &events))
	for _, e := range events {
		assert.NoError(t, doc.Components.Schemas["CloudEvent"].Value.VisitJSON(e), "%s", list)
	}
}
