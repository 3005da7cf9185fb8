package page

import (
	"fmt"
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
