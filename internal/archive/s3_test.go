package archive

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// bucket is an object store in memory that speaks as much of the S3 API as is
// spoken to it.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	gets    map[string]int
}

func startBucket(t *testing.T) (*bucket, Store) {
	t.Helper()
	b := &bucket{objects: map[string][]byte{}, gets: map[string]int{}}
	srv := httptest.NewServer(b)
	t.Cleanup(srv.Close)
	env := map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}
	s, err := NewStore("s3://backup/some/where?endpoint="+srv.URL, func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	return b, s
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, ok := strings.CutPrefix(r.URL.Path, "/backup/")
	fail := func(status int, code string) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", code)
	}
	switch {
	case !strings.Contains(r.Header.Get("Authorization"), "Credential=id/"):
		fail(http.StatusForbidden, "AccessDenied")
	case !ok:
		fail(http.StatusNotFound, "NoSuchBucket")
	case r.Method == http.MethodPut:
		body, err := io.ReadAll(unchunked(r))
		if err != nil {
			fail(http.StatusBadRequest, "IncompleteBody")
			return
		}
		b.objects[key] = body
		w.Header().Set("ETag", `"x"`)
	case r.Method == http.MethodDelete:
		delete(b.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case key == "":
		b.list(w, r)
	default:
		body, ok := b.objects[key]
		if !ok {
			fail(http.StatusNotFound, "NoSuchKey")
			return
		}
		b.gets[key]++
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		status := http.StatusOK
		if rng, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
			from, to, _ := strings.Cut(rng, "-")
			lo, _ := strconv.Atoi(from)
			hi, err := strconv.Atoi(to)
			if err != nil || hi >= len(body) {
				hi = len(body) - 1
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", lo, hi, len(body)))
			body, status = body[lo:hi+1], http.StatusPartialContent
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}
}

// list answers two keys at a time, so that pages are read.
func (b *bucket) list(w http.ResponseWriter, r *http.Request) {
	type object struct {
		Key          string
		Size         int
		LastModified string
	}
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []object
	}
	q := r.URL.Query()
	var keys []string
	for k := range b.objects {
		if strings.HasPrefix(k, q.Get("prefix")) && k > q.Get("continuation-token") {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if len(out.Contents) == 2 {
			out.IsTruncated, out.NextContinuationToken = true, out.Contents[1].Key
			break
		}
		out.Contents = append(out.Contents, object{k, len(b.objects[k]), "2006-01-02T15:04:05.000Z"})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out)
}

// unchunked takes the signatures off a body that was signed piece by piece.
func unchunked(r *http.Request) io.Reader {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return r.Body
	}
	in := bufio.NewReader(r.Body)
	out, pipe := io.Pipe()
	go func() {
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				pipe.CloseWithError(err)
				return
			}
			size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
			n, err := strconv.ParseInt(size, 16, 64)
			if err != nil || n == 0 {
				pipe.CloseWithError(err) // nil is the end
				return
			}
			if _, err := io.CopyN(pipe, in, n); err != nil {
				pipe.CloseWithError(err)
				return
			}
			_, _ = in.Discard(2)
		}
	}()
	return out
}

func TestNamesOfStores(t *testing.T) {
	none := func(string) string { return "" }
	for _, name := range []string{"/a/b", "relative", "s3://bucket", "s3://bucket/a/b?region=x&endpoint=http://127.0.0.1:9000"} {
		if _, err := NewStore(name, none); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "gs://x", "s3://", "s3:///x", "s3://id:secret@bucket/x", "s3://bucket?endpoint=127.0.0.1", "s3://bucket?endpoint=http://h/path", "s3://bucket?endpoint=https://id:secret@h", "https://id:secret@h/bucket", "s3://bucket?secret=1", "s3://b%zz"} {
		if _, err := NewStore(name, none); err == nil {
			t.Errorf("%q was taken", name)
		} else if strings.Contains(err.Error(), "secret@") {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
}
