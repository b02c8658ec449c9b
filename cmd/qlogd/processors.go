package main

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/internal/processors"
)

// registerProcessors tells how many processors the scheduler has, and how often
// that was changed.
func registerProcessors(registry *prometheus.Registry, procs *processors.Governor) {
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "qlogd_processors", Help: "Processors that the scheduler of Go has (GOMAXPROCS), as many as there is work for.",
		}, func() float64 { return float64(runtime.GOMAXPROCS(0)) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "qlogd_processor_changes_total", Help: "How often the number of processors was changed.",
		}, func() float64 { return float64(procs.Changes()) }))
}
