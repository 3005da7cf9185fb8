//go:build cgo && linux

package browser

import (
	"testing"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// The page names the rank whose GPU is hot, and shows the state of each rank's GPU. The GPUs are emulated.
func TestEmulatedHotGPUIsNamed(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("chromium"))
	fakegpu.Use(t, "nvml_throttle 2 65", "nvml_clock 2 1050", "nvml_temperature 2 91")
	_, url := start(t, nil)
	ctx := browser(t, url)
	const whole = 10 * loaded // the emulated kernels may have to be compiled
	await(t, ctx, whole, `document.getElementById("alerts").textContent.includes("its GPU runs at 1050 of 1980 MHz because of a temperature of 91 °C")`)
	await(t, ctx, loaded, `document.getElementById("alerts").textContent.startsWith("Rank 2 ")`)
	await(t, ctx, loaded, `!$("gpus").hidden && [...$("ranks").tBodies[0].rows].every((r, i) => r.cells[6].textContent === (i === 2 ? "1,050 MHz, 91 °C, 350 W" : "1,980 MHz, 45 °C, 350 W"))`)
	await(t, ctx, loaded, `states[0].step > 5`)
	shoot(t, ctx, "hot-1600", 1600, false)
	shoot(t, ctx, "hot-360", 360, true)
}
