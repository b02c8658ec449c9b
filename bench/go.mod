module github.com/qlogd/qlogd/bench

go 1.26.0

require github.com/qlogd/qlogd v0.0.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	golang.org/x/sync v0.23.0 // indirect
)

replace github.com/qlogd/qlogd => ../
