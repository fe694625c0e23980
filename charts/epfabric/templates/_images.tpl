{{- /*
An image's whole name, by which kubelets pull it: `include "epfabric.image" (dict "root" . "image" .Values.images.agent)`.
A digest names the image exactly, so a tag beside it would only mislead. `global.registry` goes before every name.
*/ -}}
{{- define "epfabric.image" -}}
{{- with (.root.Values.global).registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}
