package scafo

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestARefusalIsReportedByItsStatusAndWhateverItSays(t *testing.T) {
	t.Parallel()
	for body, said := range map[string]string{
		`{"type":"x","title":"Not now","status":503,"detail":"wait"}`: ": Not now: wait",
		`{"title":"Not now"}`:                 ": Not now",
		`{"detail":"wait","title":null}`:      ": wait",
		"{}":                                  "",
		"<html>":                              "",
		"":                                    "",
		strings.Repeat(" ", 2*largestProblem): "",
	} {
		answer := &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(strings.NewReader(body))}
		if got, expected := refused(answer).Error(), "the node answered 503"+said; got != expected {
			t.Errorf("%.40q: %q, not %q", body, got, expected)
		}
	}
}
