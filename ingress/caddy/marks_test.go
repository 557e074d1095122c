package scafo

import (
	"testing"
	"time"
)

func TestWhenAMarkIsOverOneRequestAtATimeFindsOutWhetherTheUpstreamAnswers(t *testing.T) {
	t.Parallel()
	m, now, all := &marks{until: map[string]time.Time{}}, time.Now(), []string{"a", "b", "c"}
	expect := func(what string, at time.Time, expected string) {
		t.Helper()
		if got := m.next(all, nil, at); got != expected {
			t.Errorf("%s: %s, not %s", what, got, expected)
		}
	}
	m.set("a", now)
	over := now.Add(markedFor)
	expect("the one that finds out", over, "a")
	// Caddy gives a connection up after 3 s.
	expect("another one", over, "b")
	expect("another one while the first waits", over.Add(3*time.Second), "b")
	expect("the next one, after the first had no answer", over.Add(probedFor), "a")
	expect("another one", over.Add(probedFor), "b")
	failed := over.Add(probedFor + 3*time.Second)
	m.set("a", failed)
	expect("after it failed again", failed, "b")
	expect("when that mark is over", failed.Add(markedFor), "a")
	m.clear("a")
	for range 2 {
		expect("after an answer", failed.Add(markedFor), "a")
	}
}

func TestNobodyFindsOutAboutAnUpstreamBehindOneThatAnswersAndItsMarkIsForgotten(t *testing.T) {
	t.Parallel()
	m, now, all := &marks{until: map[string]time.Time{}}, time.Now(), []string{"a", "b", "c"}
	m.set("b", now)
	over := now.Add(markedFor)
	if got := m.next(all, nil, over); got != "a" {
		t.Error("a first attempt goes to", got)
	}
	for range 2 {
		if got := m.next(all, []string{"a"}, over); got != "c" {
			t.Error("a second attempt goes to", got)
		}
	}
	forgotten := over.Add(forgottenAfter)
	if got := m.next(all, []string{"a"}, forgotten); got != "b" {
		t.Error("a second attempt a minute later goes to", got)
	}
	if m.set("a", forgotten); len(m.until) != 1 {
		t.Error("a forgotten mark is kept:", m.until)
	}
}
