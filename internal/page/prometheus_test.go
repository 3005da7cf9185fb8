package page

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/internal/testkit"
)

// hostileRun returns a run of a rank with hostile names, and how many they are.
func hostileRun() (*Run, int) {
	r := NewRun(Info{ID: "a\"b\\c\nd", Started: time.Now()})
	r.Round(1, 0)
	r.Worker(Worker{State: Running})
	names := []string{"loss", "<b>\"\\\n}", "# EOF\n", "\xff", strings.Repeat("x", telemetry.MaxName)}
	for i, name := range names {
		add(r, 0, &telemetry.Record{Kind: telemetry.Values, Step: 7, Values: []telemetry.Value{{Name: name, Number: float64(i)}}})
		add(r, 0, &telemetry.Record{Kind: telemetry.Times, Step: 7, Values: []telemetry.Value{{Name: name, Number: float64(i)}}})
	}
	return r, len(names)
}

// promtool finds nothing to complain about.
func TestPromtoolChecksMetrics(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("promtool"))
	r, _ := hostileRun()
	_, at := serve(t, r)
	_, body := fetch(t, at("/metrics"), nil)
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(body)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s\n%s", err, out, body)
	}
}

// Prometheus scrapes the metrics, with the token, also those whose names are hostile.
func TestPrometheusScrapes(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("prometheus"))
	r, names := hostileRun()
	s, _ := serve(t, r)
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs:\n- job_name: goddp\n  scrape_interval: 1s\n  authorization: {credentials: %s}\n  static_configs: [{targets: [%q]}]\n", s.token, u.Host)
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	_, at := testkit.Port(t)
	testkit.Start(t, exec.Command("prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", at)).
		Await("Server is ready to receive web requests", 1)
	want := regexp.MustCompile(`"name":"loss","rank":"0","run":"a\\"b\\\\c\\nd"},"value":\[[\d.]+,"0"\]`)
	for deadline := time.Now().Add(testkit.Soon); ; time.Sleep(100 * time.Millisecond) {
		_, body := fetch(t, "http://"+at+"/api/v1/query?query="+url.QueryEscape("{__name__=~'goddp_.*'}"), nil)
		if want.MatchString(body) && strings.Count(body, `"__name__":"goddp_value"`) == names && strings.Count(body, `"__name__":"goddp_step_part_seconds"`) == names {
			break
		}
		if time.Now().After(deadline) {
			_, targets := fetch(t, "http://"+at+"/api/v1/targets", nil)
			t.Fatalf("%s\n%s", body, targets)
		}
	}
}

// The OpenTelemetry Collector sends the metrics by OTLP, with the configuration of the examples.
func TestCollectorSendsMetrics(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("otelcol-contrib"))
	r, _ := hostileRun()
	s, _ := serve(t, r)
	bodies := make(chan string, 100)
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil {
			t.Error(err)
		}
		select {
		case bodies <- r.URL.Path + string(body):
		default:
		}
	}))
	defer sink.Close()
	dir := t.TempDir()
	text, err := os.ReadFile("../../examples/opentelemetry/collector.yaml")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.NewReplacer("10s", "1s", "127.0.0.1:9400", u.Host, "http://127.0.0.1:4318", sink.URL).Replace(string(text)))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "page.token"), []byte(s.token), 0o600), os.WriteFile(filepath.Join(dir, "collector.yaml"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("otelcol-contrib", "--config", "collector.yaml")
	cmd.Dir = dir
	testkit.Start(t, cmd)
	for end := time.After(testkit.Soon); ; {
		select {
		case body := <-bodies:
			if strings.HasPrefix(body, "/v1/metrics") && strings.Contains(body, "goddp_step_part_seconds") && strings.Contains(body, "loss") {
				return
			}
		case <-end:
			t.Fatalf("no metrics after %v", testkit.Soon)
		}
	}
}
