package push

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"time"

	"github.com/qlogd/qlogd/webhook"
)

// maxKeys bounds how many signatures a request carries.
const maxKeys = 16

// keysOf reads secrets as Standard Webhooks has them: base64 behind "whsec_". One
// without that may be meant as base64 or as it is, so it is two keys: a target
// looks for one signature that it knows. Several may stand in one text, as those
// of webhooks (webhook.Parts). No error repeats anything of them.
func keysOf(secrets []string) (keys [][]byte, err error) {
	seen := map[string]bool{}
	add := func(key []byte) {
		if len(key) > 0 && !seen[string(key)] {
			seen[string(key)] = true
			keys = append(keys, key)
		}
	}
	for _, text := range secrets {
		for _, s := range webhook.Parts(text) {
			found := webhook.StandardKeys(s)
			if len(found) == 0 && s != webhook.StandardPrefix {
				return nil, errors.New("a secret is not base64 behind " + webhook.StandardPrefix)
			}
			for _, key := range found {
				add(key)
			}
		}
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("it is empty")
	case len(keys) > maxKeys:
		return nil, errors.New("there are too many secrets")
	}
	return keys, nil
}

// signature returns the value of Webhook-Signature: one signature for each key,
// so that a target knows the request by the old or the new secret while they are
// exchanged (Standard Webhooks).
func signature(keys [][]byte, id string, at time.Time, body []byte) string {
	out := make([]byte, 0, 48*len(keys))
	for i, key := range keys {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		h.Write(body)
		if i > 0 {
			out = append(out, ' ')
		}
		out = base64.StdEncoding.AppendEncode(append(out, "v1,"...), h.Sum(nil))
	}
	return string(out)
}
