package page

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/telemetry"
)

// metrics writes the latest numbers for Prometheus, in the text format of OpenMetrics 1.0
// (https://prometheus.io/docs/specs/om/open_metrics_spec/) if the client accepts it, else in the one before, which other tools read
// (https://prometheus.io/docs/instrumenting/exposition_formats/). The official client library would make golaunch larger by half.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	o := &openMetrics{isPlain: !strings.Contains(r.Header.Get("Accept"), "application/openmetrics-text"), families: map[string]*strings.Builder{}}
	w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	if o.isPlain {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	}
	for _, r := range s.runs {
		r.metrics(o)
	}
	o.write(w)
}

// metrics adds the numbers of the run.
func (r *Run) metrics(o *openMetrics) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := label{"run", r.info.ID}
	flag := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	o.add("goddp_up", "gauge", "", "Whether the job runs.", flag(r.status == Running), run)
	o.add("goddp_world_size", "gauge", "", "Number of ranks of the current round.", float64(r.worldSize), run)
	o.add("goddp_restarts", "counter", "", "Number of restarts.", float64(r.restarts), run)
	o.add("goddp_start_time_seconds", "gauge", "seconds", "When the job began, in seconds since 1970.", float64(r.info.Started.UnixMilli())/1e3, run)
	if r.checkpoint != nil {
		o.add("goddp_checkpoint_time_seconds", "gauge", "seconds", "When the last checkpoint was durable, in seconds since 1970.", float64(r.checkpoint.Time.UnixMilli())/1e3, run)
	}
	now, names := r.now(), slices.Sorted(maps.Keys(r.names))
	for _, n := range r.currentRanks() {
		k, rank := r.ranks[n], label{"rank", strconv.Itoa(n)}
		if w, ok := r.workers[n]; ok {
			o.add("goddp_worker_up", "gauge", "", "Whether the worker runs.", flag(w.State == Running), run, rank)
		}
		if k == nil || k.at.IsZero() {
			continue
		}
		o.add("goddp_step", "gauge", "", "Number of completed steps.", float64(k.step), run, rank)
		o.add("goddp_report_age_seconds", "gauge", "seconds", "Time since the worker's last report.", now.Sub(k.at).Seconds(), run, rank)
		o.add("goddp_reports_dropped", "counter", "", "Number of records of values or times that the worker dropped, because golaunch had not taken the earlier ones.", float64(k.dropped), run, rank)
		mean := k.pace.mean()
		for _, part := range slices.Sorted(maps.Keys(mean)) {
			o.add("goddp_step_part_seconds", "gauge", "seconds", "Mean time of a part of the last steps.", mean[part], run, rank, label{"part", part})
		}
		for _, name := range names {
			if s := r.series[key{telemetry.Values, name, n}]; s != nil {
				o.add("goddp_value", "gauge", "", "Latest value of a number that the program reports.", s.latest, run, rank, label{"name", name})
			}
		}
	}
}

// label is a label of a metric.
type label struct{ name, value string }

// openMetrics collects samples, because all samples of a metric must be together.
type openMetrics struct {
	isPlain  bool // in the format before OpenMetrics
	order    []string
	families map[string]*strings.Builder // the text of each metric
}

// add adds a sample, which has a label at least.
func (o *openMetrics) add(name, kind, unit, help string, value float64, labels ...label) {
	family := name
	if kind == "counter" {
		name += "_total"
		if o.isPlain {
			family = name
		}
	}
	b := o.families[family]
	if b == nil {
		b = &strings.Builder{}
		o.order, o.families[family] = append(o.order, family), b
		fmt.Fprintf(b, "# TYPE %s %s\n", family, kind)
		if unit != "" && !o.isPlain {
			fmt.Fprintf(b, "# UNIT %s %s\n", family, unit)
		}
		fmt.Fprintf(b, "# HELP %s %s\n", family, help)
	}
	b.WriteString(name)
	for i, l := range labels {
		fmt.Fprintf(b, `%c%s="%s"`, "{,"[min(i, 1)], l.name, escape.Replace(strings.ToValidUTF8(l.value, "\uFFFD")))
	}
	fmt.Fprintf(b, "} %s\n", strconv.FormatFloat(value, 'g', -1, 64)) // NaN, +Inf and -Inf included
}

// escape escapes the value of a label.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// write writes all samples.
func (o *openMetrics) write(w io.Writer) {
	for _, family := range o.order {
		_, _ = io.WriteString(w, o.families[family].String()) // the reader may be gone
	}
	if !o.isPlain {
		_, _ = io.WriteString(w, "# EOF\n")
	}
}
