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
	o := &openMetrics{w: w, isPlain: !strings.Contains(r.Header.Get("Accept"), "application/openmetrics-text")}
	w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	if o.isPlain {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	}
	for _, r := range s.runs {
		r.metrics(o)
	}
	o.end()
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
	now := r.now()
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
		for part, t := range sorted(k.pace.mean()) {
			o.add("goddp_step_part_seconds", "gauge", "seconds", "Mean time of a part of the last steps.", t, run, rank, label{"part", part})
		}
		for _, name := range slices.Sorted(maps.Keys(r.names)) {
			if s := r.series[key{telemetry.Values, name, n}]; s != nil {
				o.add("goddp_value", "gauge", "", "Latest value of a number that the program reports.", s.latest, run, rank, label{"name", name})
			}
		}
	}
}

// sorted yields a map in the order of its keys.
func sorted(m map[string]float64) func(func(string, float64) bool) {
	return func(yield func(string, float64) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// label is a label of a metric.
type label struct{ name, value string }

// openMetrics collects samples, because all samples of a metric must be together.
type openMetrics struct {
	w       io.Writer
	isPlain bool // in the format before OpenMetrics
	order   []string
	heads   map[string]string
	lines   map[string][]string
}

// add adds a sample.
func (o *openMetrics) add(name, kind, unit, help string, value float64, labels ...label) {
	if o.heads == nil {
		o.heads, o.lines = map[string]string{}, map[string][]string{}
	}
	family := name
	if kind == "counter" {
		name += "_total"
		if o.isPlain {
			family = name
		}
	}
	if _, isKnown := o.heads[family]; !isKnown {
		o.order = append(o.order, family)
		head := fmt.Sprintf("# TYPE %s %s\n", family, kind)
		if unit != "" && !o.isPlain {
			head += fmt.Sprintf("# UNIT %s %s\n", family, unit)
		}
		o.heads[family] = head + fmt.Sprintf("# HELP %s %s\n", family, help)
	}
	var b strings.Builder
	b.WriteString(name)
	for i, l := range labels {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&b, `%s="%s"`, l.name, escape.Replace(strings.ToValidUTF8(l.value, "\uFFFD")))
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	o.lines[family] = append(o.lines[family], b.String()+" "+formatNumber(value)+"\n")
}

// escape escapes the value of a label.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// formatNumber formats a value as OpenMetrics has it: NaN, +Inf and -Inf included.
func formatNumber(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// end writes all samples.
func (o *openMetrics) end() {
	for _, name := range o.order {
		_, _ = io.WriteString(o.w, o.heads[name]+strings.Join(o.lines[name], ""))
	}
	if !o.isPlain {
		_, _ = io.WriteString(o.w, "# EOF\n")
	}
}
