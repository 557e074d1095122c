// Package scafo makes Caddy an ingress of scafo fleets.
//
// It holds six Caddy modules. All of them work from the routing documents that the app module (scafo) pulls from one
// node of each fleet and keeps in memory: no node is asked where a request goes, or whether a name may have a certificate.
//
//   - scafo: the app; the fleets, and one poller for each.
//   - http.reverse_proxy.upstreams.scafo: the upstreams of the requested host, in priority order.
//   - http.handlers.scafo and http.matchers.scafo: the answers that the ingress gives itself.
//   - tls.permission.scafo: which names may get a certificate on demand.
//   - caddy.storage.scafo: certificates, keys and issuance locks in the fleet that names their domain.
//
// Reading order: document.go, decide.go, link.go, poll.go, app.go, then one file for each module.
package scafo
