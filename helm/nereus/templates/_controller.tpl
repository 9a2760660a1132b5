{{/*
The command that the RayJob runs on the head. It makes the controller's actors, which are detached, and ends. Without tokens the
API stays on the loopback of the head's pod.
*/}}
{{- define "nereus.startCommand" -}}
python -m nereus controller start --folder {{ .Values.controller.folder }} --port {{ .Values.api.port }}
{{- if .Values.api.existingSecret }} --host 0.0.0.0 --token-file {{ include "nereus.tokenFile" . }}{{ end }}
{{- with .Values.controller.minDevices }} --min-devices {{ . }}{{ end }}
{{- with .Values.controller.maxDevices }} --max-devices {{ . }}{{ end }}
{{- end -}}
