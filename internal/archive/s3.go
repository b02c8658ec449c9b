package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// s3 is a store in a bucket of an object store that speaks the S3 API. An
// object is written by one call, which the store answers when the object is
// there, whole.
type s3 struct {
	client         *minio.Client
	bucket, prefix string // prefix is "" or ends with a slash
}

// defaultEndpoint is Amazon's.
const defaultEndpoint = "https://s3.amazonaws.com"

// NewStore returns the store that a user has named: a directory, or
//
//	s3://bucket/prefix?endpoint=https://host:port&region=eu-central-1
//
// Endpoint and region may also come from AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL, and from AWS_REGION. Credentials come from the environment
// (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), else from the
// shared credentials file, else from the machine's role: never from the name.
func NewStore(name string, getenv func(string) string) (Store, error) {
	if !strings.HasPrefix(name, "s3://") {
		if strings.Contains(name, "://") || name == "" {
			scheme, _, _ := strings.Cut(name, "://") // what follows may have credentials in it
			return nil, fmt.Errorf("archive %.20q: want a directory or s3://bucket/prefix", scheme)
		}
		return NewDir(name), nil
	}
	u, err := url.Parse(name)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("archive: want s3://bucket/prefix, without credentials in it")
	}
	endpoint, region := "", ""
	for k, v := range u.Query() {
		switch k {
		case "endpoint":
			endpoint = v[0]
		case "region":
			region = v[0]
		default:
			return nil, fmt.Errorf("archive: %.64q is neither endpoint nor region", k)
		}
	}
	for _, env := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if endpoint == "" {
			endpoint = getenv(env)
		}
	}
	for _, env := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if region == "" {
			region = getenv(env)
		}
	}
	if endpoint == "" {
		endpoint = defaultEndpoint
	}
	e, err := url.Parse(endpoint)
	if err != nil || e.Host == "" || e.User != nil || e.Scheme != "http" && e.Scheme != "https" || strings.Trim(e.Path, "/") != "" {
		return nil, errors.New("archive: the endpoint is not https://HOST:PORT, without credentials in it")
	}
	creds := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}}
	if id := getenv("AWS_ACCESS_KEY_ID"); id != "" {
		creds = []credentials.Provider{&credentials.Static{Value: credentials.Value{
			AccessKeyID: id, SecretAccessKey: getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: getenv("AWS_SESSION_TOKEN"),
			SignerType: credentials.SignatureV4,
		}}}
	}
	client, err := minio.New(e.Host, &minio.Options{
		Creds: credentials.NewChainCredentials(creds), Secure: e.Scheme == "https", Region: region, MaxRetries: 5,
	})
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	s := &s3{client: client, bucket: u.Host, prefix: strings.Trim(u.Path, "/")}
	if s.prefix != "" {
		s.prefix += "/"
	}
	return s, nil
}

func (s *s3) String() string { return "s3://" + s.bucket + "/" + s.prefix }

// Local implements Store: nowhere.
func (s *s3) Local(string) string { return "" }

// Put implements Store. Up to 5 GiB an object is one call; a segment is 4 GiB
// at most.
func (s *s3) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	_, err := s.client.PutObject(ctx, s.bucket, s.prefix+name, r, size, minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableMultipart: true,
	})
	return s.error("write", name, err)
}

// Get implements Store.
func (s *s3) Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	o := minio.GetObjectOptions{}
	switch {
	case n == 0:
		return io.NopCloser(strings.NewReader("")), nil
	case n > 0:
		if err := o.SetRange(off, off+n-1); err != nil {
			return nil, err
		}
	case off > 0:
		if err := o.SetRange(off, 0); err != nil {
			return nil, err
		}
	}
	// Core's: without it the object is asked for only at the first read.
	r, _, _, err := minio.Core{Client: s.client}.GetObject(ctx, s.bucket, s.prefix+name, o)
	if err != nil {
		return nil, s.error("read", name, err)
	}
	return r, nil
}

// List implements Store.
func (s *s3) List(ctx context.Context, prefix string) ([]Object, error) {
	var out []Object
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing, should it be left early
	for o := range s.client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, s.error("list", prefix, o.Err)
		}
		out = append(out, Object{strings.TrimPrefix(o.Key, s.prefix), o.Size})
	}
	return out, nil
}

// Delete implements Store.
func (s *s3) Delete(ctx context.Context, name string) error {
	return s.error("delete", name, s.client.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{}))
}

func (s *s3) error(what, name string, err error) error {
	if err == nil {
		return nil
	}
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return fmt.Errorf("%s %s%s: %w", what, s, name, fs.ErrNotExist)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%s %s%s: %w", what, s, name, err)
}
